// A conversation with a model; it stays in this tab alone.

import { element, make, show } from "./elements.js";
import { call, events } from "./events.js";

let conversation = [];
let running = null; // ends the answer that is coming
let able = new Map(); // what each model can, by name

export function draw({ status }) {
  const talking = status.models.filter((each) => each.can.includes("chat") || each.can.includes("generate"));
  able = new Map(talking.map((each) => [each.name, each.can]));
  const choice = element("model");
  const names = [...able.keys()];
  if (names.join("\n") !== [...choice.options].map((each) => each.value).join("\n")) {
    const before = choice.value;
    choice.replaceChildren(...names.map((name) => make("option", name, { value: name })));
    if (able.has(before)) choice.value = before;
  }
  chosen();
}

function chosen() {
  element("image-row").hidden = !able.get(element("model").value)?.includes("images");
}

export function begin() {
  element("model").addEventListener("change", chosen);
  element("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) element("ask").requestSubmit();
  });
  element("stop").addEventListener("click", () => running?.abort());
  element("anew").addEventListener("click", () => {
    running?.abort();
    conversation = [];
    element("messages").replaceChildren();
    element("prompt").focus();
  });
}

async function send() {
  if (running) return;
  const text = element("prompt").value;
  const images = element("image-row").hidden ? [] : [...element("image").files];
  running = new AbortController();
  const { signal } = running;
  const mine = conversation; // a new conversation leaves this one alone
  busy(true);
  const answer = { role: "assistant", content: "" };
  let place;
  try {
    const parts = await Promise.all(images.map(async (file) => ({ type: "image_url", image_url: { url: await read(file) } })));
    mine.push({ role: "user", content: parts.length ? [...parts, { type: "text", text }] : text });
    said("You", images.length ? `${text}\n[${images.map((each) => each.name).join(", ")}]` : text);
    element("prompt").value = element("image").value = "";
    place = said("Model", "");
    await receive(mine, answer, place, signal);
    show("talk-state", "");
  } catch (error) {
    const stopped = error.name === "AbortError";
    show("talk-state", stopped ? "Stopped." : error.message, !stopped);
  } finally {
    if (!answer.content && !place?.thoughts) place?.root.remove();
    // A question without any answer is not asked again with the next one.
    if (answer.content) mine.push(answer);
    else if (mine.at(-1)?.role === "user") mine.pop();
    running = null;
    busy(false);
  }
}

async function receive(messages, answer, place, signal) {
  const body = { model: element("model").value, messages, stream: true, user: "page" };
  const stream = await call("/v1/chat/completions", { body, accept: "text/event-stream", signal });
  for await (const { data, comment } of events(stream)) {
    if (comment) show("talk-state", comment);
    const delta = data?.choices?.[0]?.delta;
    if (delta?.reasoning_content) think(place, delta.reasoning_content);
    if (delta?.content) {
      show("talk-state", "Answering …");
      answer.content += delta.content;
      place.text.append(delta.content);
    }
    element("messages").scrollTop = element("messages").scrollHeight;
  }
}

function said(who, text) {
  const root = make("article");
  const place = { root, text: make("p", text), thoughts: null };
  root.append(make("h3", who), place.text);
  element("messages").append(root);
  return place;
}

function think(place, text) {
  if (!place.thoughts) {
    const folded = make("details");
    place.thoughts = make("p");
    folded.append(make("summary", "Thoughts"), place.thoughts);
    place.root.insertBefore(folded, place.text);
  }
  show("talk-state", "Thinking …");
  place.thoughts.append(text);
}

function busy(is) {
  element("send").hidden = is;
  element("stop").hidden = !is;
  element("messages").setAttribute("aria-busy", String(is));
  if (is) show("talk-state", "Sent.");
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the image cannot be read"));
    reader.readAsDataURL(file);
  });
}
