// Answers, streams, cancellation and errors against a daemon.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Client, ConnectTimeout, InvalidParams, ModelUnavailable, RequestCancelled } from "card-client";
import { TestDaemon } from "./daemon.js";

const daemon = new TestDaemon();
let client: Client;

before(async () => {
  await daemon.start();
  client = daemon.client();
});

after(async () => {
  client.close();
  await daemon.remove();
});

/** Wait until nothing runs and nothing waits at the daemon. */
async function idle(): Promise<void> {
  for await (const status of client.watchStatus(100)) {
    if (status.sequences.length + status.queue.latency_critical === 0) return;
  }
}

test("an answer has its text, its model and its usage", async () => {
  const answer = await client.infer({ prompt: "one two three", max_tokens: 3, seed: 7 });
  assert.ok(answer.text);
  assert.equal(answer.finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 3);
});

test("the chunks of a stream together are its answer, which is that of infer", async () => {
  const params = { prompt: "one two three", max_tokens: 5, temperature: 0 };
  const stream = client.inferStream(params);
  let text = "";
  for await (const chunk of stream) text += chunk.text;
  assert.equal(stream.answer?.text, text);
  assert.equal(text, (await client.infer(params)).text);
});

test("a break cancels the request and frees its sequence", async () => {
  for await (const chunk of client.inferStream({ prompt: "one two", max_tokens: 4000, ignore_eos: true })) {
    assert.equal(chunk.seq, 0);
    break;
  }
  await idle();
});

test("a signal rejects the call with its reason at once, and frees the sequence", async () => {
  const aborter = new AbortController();
  const stream = client.inferStream(
    { prompt: "one two", max_tokens: 4000, ignore_eos: true },
    { signal: aborter.signal },
  );
  await stream.next();
  const reason = new Error("enough");
  aborter.abort(reason);
  await assert.rejects(async () => {
    for await (const _ of stream);
  }, reason);
  await idle();
});

test("a cancelled stream still gives what came, then RequestCancelled", async () => {
  const stream = client.inferStream({ prompt: "one two", max_tokens: 4000, ignore_eos: true });
  await stream.next();
  stream.cancel();
  await assert.rejects(async () => {
    for await (const _ of stream);
  }, RequestCancelled);
});

test("200 streams at once all have their answers, and of cancelled streams nothing runs on", async () => {
  const texts = await Promise.all(
    Array.from({ length: 200 }, async (_, number) => {
      const stream = client.inferStream({ prompt: `stream ${number}`, max_tokens: 2 + (number % 3) });
      let chunks = 0;
      for await (const _ of stream) {
        chunks += 1;
        if (number % 10 === 0) break;
      }
      return { number, chunks, answer: stream.answer };
    }),
  );
  for (const { number, answer } of texts) {
    if (number % 10 !== 0) assert.equal(answer?.usage.completion_tokens, 2 + (number % 3));
  }
  await idle();
});

test("errors are classes with code, data and retryable", async () => {
  await assert.rejects(client.infer({ prompt: "one", temperature: 9 }), (error) => {
    assert.ok(error instanceof InvalidParams);
    assert.deepEqual([error.code, error.reason, error.param], [-32602, "invalid_params", "temperature"]);
    assert.equal(error.retryable, false);
    return true;
  });
  await assert.rejects(client.infer({ prompt: "one", model: "nobody" }), ModelUnavailable);
});

test("without a daemon a call says which paths were tried", async () => {
  const other = new TestDaemon();
  const alone = other.client({ connectTimeoutMs: 0 });
  await assert.rejects(alone.status(), (error) => {
    assert.ok(error instanceof ConnectTimeout);
    assert.deepEqual(error.tried, [other.path]);
    assert.match(error.message, /no such file/);
    return true;
  });
  alone.close();
  await other.remove();
});

test("tokens and texts go there and back", async () => {
  const tokens = await client.tokenize({ text: "one two" });
  assert.equal(await client.countTokens({ text: "one two" }), tokens.length);
  assert.equal(await client.detokenize({ tokens }), "one two");
});

test("the models and the status name the default model", async () => {
  const [first] = await client.models();
  assert.ok(first);
  assert.deepEqual(
    (await client.status()).models.map((model) => model.name),
    [first.name],
  );
});

test("a question of the wrong form is refused with its path", async () => {
  const questions = [{ type: "choice" as const, instructions: "Which?", options: [{ value: "one" }] }];
  await assert.rejects(client.decide({ state: "a text", questions }), (error) => {
    assert.ok(error instanceof InvalidParams);
    assert.match(error.param, /^questions\[0\]/);
    return true;
  });
});
