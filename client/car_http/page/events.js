// Requests to the door, and server-sent events as they come.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Send a request; a body makes it a POST. Throws Refused with the door's own message.
export async function call(path, { body, accept = "application/json", headers = {}, ...more } = {}) {
  const request = { headers: { accept, ...headers }, credentials: "same-origin", ...more };
  if (body !== undefined) {
    request.method = "POST";
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const answer = await fetch(path, request);
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Refused(answer.status, told?.error?.message ?? `the door answers ${answer.status}`);
  }
  return answer;
}

// Yield {name, data, comment} of an answer until it ends; throws Refused for an event of an error.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      yield* blocks.map(parsed).filter((event) => event.data !== "[DONE]");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const event = { name: "message", data: undefined, comment: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    else if (line.startsWith("data: ")) event.data = line.slice(6);
    else if (line.startsWith(": ")) event.comment = line.slice(2);
  }
  if (event.data !== undefined && event.data !== "[DONE]") {
    event.data = JSON.parse(event.data);
    if (event.data.error) throw new Refused(event.data.error.code, event.data.error.message);
  }
  return event;
}
