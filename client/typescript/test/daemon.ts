// A daemon of its own for each test: the command that CARD_TEST_DAEMON names, on a socket in a temporary folder.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Client, connect } from "card-client";

const COMMAND: string[] = JSON.parse(process.env.CARD_TEST_DAEMON ?? '["python3", "-m", "tools.scripted"]');

/** A daemon that may be started, killed and started again; `path` is its socket. */
export class TestDaemon {
  readonly path: string;
  #folder = mkdtempSync(join(tmpdir(), "card-"));
  #process: ChildProcess | undefined;

  constructor() {
    this.path = join(this.#folder, "card.sock");
  }

  /** Start it, and return once a client is answered and the model is served. */
  async start(): Promise<void> {
    const [program, ...args] = COMMAND as [string, ...string[]];
    this.#process = spawn(program, args, {
      env: { ...process.env, CAR_SOCKET: this.path, XDG_CACHE_HOME: this.#folder },
      stdio: ["ignore", "ignore", "inherit"],
    });
    const client = this.client({ connectTimeoutMs: 60_000 });
    try {
      const loaded = new Promise<void>((resolve) => {
        client.subscribe(() => resolve());
      });
      if ((await client.connected()).state !== "ready") await loaded;
    } finally {
      client.close();
    }
  }

  /** Return a client of this daemon. */
  client(options: { connectTimeoutMs?: number; maxRetries?: number } = {}): Client {
    return connect({ path: this.path, ...options });
  }

  /** End it as kill -9 does. */
  async kill(): Promise<void> {
    const ended = this.#process;
    this.#process = undefined;
    if (!ended || ended.exitCode !== null) return;
    ended.kill("SIGKILL");
    await once(ended, "exit");
  }

  /** End it and remove its folder. */
  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
