// The client, by the list of cases that the clients of all languages share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { type Client, type InferStream, RequestCancelled } from "card-client";
import { TestDaemon } from "./daemon.js";

interface Case {
  name: string;
  steps: string[];
}

const FILE = process.env.CARD_TEST_CASES ?? "../../tests/clients/cases.json";
const CASES: Case[] = JSON.parse(readFileSync(FILE, "utf8")).cases;

/** Wait until the client's capacity is `figure`; it may be that already. */
function becomes(client: Client, figure: number): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (client.capacity !== figure) return;
      end();
      resolve();
    };
    const end = client.subscribe(look);
    look();
  });
}

/** Read a stream to its end; return its error, if it has one. */
async function ended(stream: InferStream): Promise<unknown> {
  try {
    for await (const _ of stream);
  } catch (error) {
    return error;
  }
}

for (const { name, steps } of CASES) {
  test(`case: ${name}`, { timeout: 120_000 }, async () => {
    const daemon = new TestDaemon();
    let client: Client | undefined;
    const begun: { stream: InferStream; end: Promise<unknown> }[] = [];
    const model = async (method: "models/load" | "models/unload") => {
      const other = daemon.client();
      const [first] = await other.models();
      await other.call(method, { model: first?.name ?? "" });
      other.close();
    };
    const declared = async () => {
      const other = daemon.client();
      const { capacity } = await other.connected();
      other.close();
      return capacity;
    };
    const made = (): Client => {
      assert.ok(client);
      return client;
    };
    const actions: Record<string, (argument: string) => Promise<void> | void> = {
      daemon: () => daemon.start(),
      kill: () => daemon.kill(),
      client: () => {
        client = daemon.client();
      },
      close: () => client?.close(),
      load: () => model("models/load"),
      unload: () => model("models/unload"),
      capacity: async (expected) => {
        if (expected.endsWith(" at once")) assert.equal(made().capacity, Number.parseInt(expected, 10));
        else
          await becomes(made(), expected === "declared" ? await declared() : Number.parseInt(expected, 10));
      },
      answered: async (number) => {
        const prompts = Array.from({ length: Number(number) }, (_, each) => `${each}`);
        const answers = await Promise.all(prompts.map((prompt) => made().infer({ prompt, max_tokens: 1 })));
        assert.deepEqual(
          answers.map((answer) => answer.text.trim()),
          prompts,
        );
      },
      begin: (number) => {
        for (let each = 0; each < Number(number); each += 1) {
          const stream = made().inferStream({ prompt: `${each}`, max_tokens: 4000 });
          begun.push({ stream, end: ended(stream) });
        }
      },
      "in flight": async (number) => {
        while ((await made().status()).totals.in_flight !== Number(number)) await setTimeout(10);
      },
      cancel: async () => {
        for (const { stream } of begun) stream.cancel();
        for (const { end } of begun) assert.ok((await end) instanceof RequestCancelled);
      },
    };
    // A client does not keep the process alive by itself, and this test waits for its news.
    const alive = setInterval(() => {}, 1_000);
    try {
      for (const step of steps) {
        const [action = "", argument = ""] = step.split(": ");
        assert.ok(actions[action]);
        await actions[action](argument);
      }
    } finally {
      clearInterval(alive);
      client?.close();
      await daemon.remove();
    }
  });
}
