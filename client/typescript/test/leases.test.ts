// The leases of cancelled streams, against a daemon whose sequences all advance by one chunk a step.

import assert from "node:assert/strict";
import { test } from "node:test";
import { RequestCancelled } from "card-client";
import { TestDaemon } from "./daemon.js";

const STREAMS = 200;
const ENDLESS = 4_000;

test("each of 200 cancelled streams frees its lease within a step", { timeout: 120_000 }, async () => {
  const daemon = new TestDaemon();
  await daemon.start();
  const client = daemon.client();
  try {
    const { capacity } = await client.connected();
    // One stream is read throughout: its chunks count the engine's steps.
    const clock = client.inferStream({ prompt: "clock", max_tokens: ENDLESS });
    let steps = 0;
    await clock.next();
    const counted = assert.rejects(async () => {
      for await (const _ of clock) steps += 1;
    }, RequestCancelled);

    const begun: number[] = [];
    const ended: number[] = [];
    await Promise.all(
      Array.from({ length: STREAMS - 1 }, async (_, number) => {
        const stream = client.inferStream({ prompt: `stream ${number}`, max_tokens: ENDLESS });
        await stream.next();
        begun.push(steps);
        stream.cancel();
        await assert.rejects(async () => {
          for await (const _ of stream);
        }, RequestCancelled);
        ended.push(steps);
      }),
    );
    // The first streams find free sequences; each further one begins in the sequence that a cancelled one left. The
    // daemon answers a cancelled stream at once: a step may be under way then, and the next one has its successor.
    const waits = begun.slice(capacity - 1).map((step, index) => step - (ended[index] ?? 0));
    assert.equal(waits.length, STREAMS - capacity);
    const mean = waits.reduce((sum, wait) => sum + wait, 0) / waits.length;
    assert.ok(mean <= 2, `a successor began ${mean} steps after the cancel: ${waits}`);

    clock.cancel();
    await counted;
    const { totals } = await client.status();
    assert.deepEqual(
      [totals.cancelled, totals.completed, totals.failed, totals.rejected],
      [STREAMS, 0, 0, 0],
    );
  } finally {
    client.close();
    await daemon.remove();
  }
});
