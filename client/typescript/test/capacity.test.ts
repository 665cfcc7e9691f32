// The capacity, by the list of cases that the clients of all languages share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { Client } from "card-client";
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

for (const { name, steps } of CASES) {
  test(`capacity: ${name}`, { timeout: 120_000 }, async () => {
    const daemon = new TestDaemon();
    let client: Client | undefined;
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
    const actions: Record<string, () => Promise<void> | void> = {
      daemon: () => daemon.start(),
      kill: () => daemon.kill(),
      client: () => {
        client = daemon.client();
      },
      close: () => client?.close(),
      load: () => model("models/load"),
      unload: () => model("models/unload"),
    };
    // A client does not keep the process alive by itself, and this test waits for its news.
    const alive = setInterval(() => {}, 1_000);
    try {
      for (const step of steps) {
        const [action = "", expected = ""] = step.split(": ");
        if (action !== "capacity") {
          await actions[action]?.();
          continue;
        }
        assert.ok(client);
        if (expected.endsWith(" at once")) assert.equal(client.capacity, Number.parseInt(expected, 10));
        else
          await becomes(client, expected === "declared" ? await declared() : Number.parseInt(expected, 10));
      }
    } finally {
      clearInterval(alive);
      client?.close();
      await daemon.remove();
    }
  });
}
