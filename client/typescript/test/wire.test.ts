// What a client does when the daemon's bytes are wrong, late or missing, against a server that follows a script.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import {
  type Client,
  type ClientOptions,
  ConnectionLost,
  connect,
  LimitReached,
  ProtocolError,
  RequestTimeout,
} from "card-client";

type Request = { id: number; method: string; params: Record<string, unknown> };
type Script = (request: Request, socket: Socket, attempt: number) => void;

const CAPACITY = { capacity: 4, limits: { max_frame_bytes: 1_000 } };

function send(socket: Socket, message: object): void {
  socket.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
}

/** Run `body` with a client of a server that answers the capacity, and everything else by `script`. */
async function scripted(
  script: Script,
  body: (client: Client, seen: Request[]) => Promise<void>,
  options: ClientOptions = {},
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "card-"));
  const path = join(folder, "card.sock");
  const seen: Request[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    let rest = "";
    socket.on("data", (data) => {
      const lines = (rest + data.toString()).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const request = JSON.parse(line) as Request;
        if (request.method === "inference/capacity") send(socket, { id: request.id, result: CAPACITY });
        else {
          seen.push(request);
          script(request, socket, seen.filter((each) => each.method === request.method).length);
        }
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const client = connect({ path, ...options });
  try {
    await body(client, seen);
  } finally {
    client.close();
    for (const socket of sockets) socket.destroy();
    server.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

const answer = { text: "yes", model: "m", seed: 1, usage: {}, timings: {} };

test("a call is sent again after an error that is retryable", async () => {
  const busy = {
    code: 1001,
    message: "full",
    data: { reason: "overloaded", retryable: true, retry_after_ms: 1 },
  };
  await scripted(
    (request, socket, attempt) =>
      send(socket, { id: request.id, ...(attempt === 1 ? { error: busy } : { result: answer }) }),
    async (client, seen) => {
      assert.equal((await client.infer({ prompt: "x" })).text, "yes");
      assert.equal(seen.length, 2);
    },
  );
});

test("a call is sent again after a loss, unless it must not wait", async () => {
  const script: Script = (request, socket, attempt) =>
    attempt === 1 ? socket.destroy() : send(socket, { id: request.id, result: answer });
  await scripted(script, async (client, seen) => {
    assert.equal((await client.infer({ prompt: "x" })).text, "yes");
    assert.equal(seen.length, 2);
  });
  await scripted(script, async (client, seen) => {
    await assert.rejects(client.infer({ prompt: "x", wait: false }), ConnectionLost);
    assert.equal(seen.length, 1);
  });
});

test("a stream that delivered a chunk is not sent again", async () => {
  await scripted(
    (request, socket) => {
      send(socket, { method: "infer_stream/chunk", params: { id: request.id, seq: 0, text: "a" } });
      setImmediate(() => socket.destroy());
    },
    async (client, seen) => {
      const stream = client.inferStream({ prompt: "x" });
      assert.equal((await stream.next()).value?.text, "a");
      await assert.rejects(stream.next(), ConnectionLost);
      assert.equal(seen.filter((each) => each.method === "infer_stream").length, 1);
    },
  );
});

for (const [name, sequence, claimed] of [
  ["a gap between two chunks", [0, 2], 2],
  ["an answer that claims more chunks than came", [0, 1], 3],
] as const) {
  test(`${name} is a protocol error`, async () => {
    await scripted(
      (request, socket) => {
        if (request.method !== "infer_stream") return;
        for (const seq of sequence) {
          send(socket, { method: "infer_stream/chunk", params: { id: request.id, seq, text: "a" } });
        }
        send(socket, { id: request.id, result: { ...answer, text: undefined, chunks: claimed } });
      },
      async (client) => {
        await assert.rejects(async () => {
          for await (const _ of client.inferStream({ prompt: "x" }));
        }, ProtocolError);
      },
    );
  });
}

test("a frame that is not JSON ends the calls in flight, and capacity is 1", async () => {
  await scripted(
    (_, socket) => socket.write("{\n"),
    async (client) => {
      await client.connected();
      assert.equal(client.capacity, 4);
      await assert.rejects(client.infer({ prompt: "x" }), ProtocolError);
      assert.equal(client.capacity, 1);
    },
  );
});

test("a frame that comes byte by byte is one frame", async () => {
  await scripted(
    (request, socket) => {
      const bytes = Buffer.from(
        `${JSON.stringify({ id: request.id, result: { ...answer, text: "größer 🙂" } })}\n`,
      );
      for (const byte of bytes) socket.write(Buffer.of(byte));
    },
    async (client) => assert.equal((await client.infer({ prompt: "x" })).text, "größer 🙂"),
  );
});

test("a request that is longer than a frame may be is refused before it is sent", async () => {
  await scripted(
    () => {},
    async (client, seen) => {
      await client.connected();
      await assert.rejects(client.infer({ prompt: "x".repeat(2_000) }), LimitReached);
      assert.equal(seen.length, 0);
    },
  );
});

test("a call that takes too long is cancelled at the daemon", async () => {
  const cancelled = withResolvers();
  await scripted(
    (request) => {
      if (request.method === "$/cancelRequest") cancelled.resolve(request.params.id);
    },
    async (client, seen) => {
      await assert.rejects(client.infer({ prompt: "x" }), RequestTimeout);
      assert.equal(await cancelled.promise, seen[0]?.id);
    },
    { timeoutMs: 50 },
  );
});

test("a closed client rejects its calls", async () => {
  await scripted(
    () => {},
    async (client) => {
      const call = client.infer({ prompt: "x" });
      await client.connected();
      client.close();
      await assert.rejects(call, /closed/);
      await assert.rejects(client.status(), /closed/);
    },
  );
});

function withResolvers(): { promise: Promise<unknown>; resolve: (value: unknown) => void } {
  let resolve: (value: unknown) => void = () => {};
  const promise = new Promise((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
