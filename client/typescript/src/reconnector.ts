// The connection that a client keeps: made in the background, and again after each loss, until the client is closed.

import { Connection } from "./connection.js";
import { type CardError, ConnectTimeout, DaemonUnavailable } from "./errors.js";
import type { Capacity, Status } from "./protocol.js";
import { connectDelayMs } from "./retries.js";

type Listener<T> = (value: T) => void;

/** Keeps a connection to the first of `paths` that answers, from the start to `close`. */
export class Reconnector {
  /** The live connection; undefined while there is none. */
  connection: Connection | undefined;
  readonly capacityListeners = new Set<Listener<number>>();
  readonly statusListeners = new Set<Listener<Status>>();
  readonly lossListeners = new Set<Listener<CardError>>();
  #failures = new Map<string, string>(); // of the last attempt on each path
  #waiting = new Set<() => void>(); // calls that wait for a connection
  #tried = false; // one attempt was made, which a call waits for even with a timeout of 0
  #closed = false;
  #timer: NodeJS.Timeout | undefined;
  #known = 1; // the capacity that the listeners were last told

  constructor(private readonly paths: readonly string[]) {
    void this.#connect(0);
  }

  /** The number of requests that run at once; 1 without a connection. */
  get capacity(): number {
    return this.connection?.capacity ?? 1;
  }

  /**
   * Return the live connection, waiting for it.
   *
   * @throws ConnectTimeout after `timeoutMs`, but not before one attempt was made; DaemonUnavailable once closed.
   */
  async ready(timeoutMs: number, signal?: AbortSignal): Promise<Connection> {
    const timeout = AbortSignal.timeout(Math.ceil(Math.max(0, timeoutMs)));
    this.#timer?.ref(); // a call waits: the attempts keep the process alive
    while (!this.connection && !this.#closed && !(timeout.aborted && this.#tried)) {
      signal?.throwIfAborted();
      await this.#change(this.#tried ? timeout : undefined, signal);
    }
    if (this.#closed) throw closed();
    if (!this.connection) throw this.#unavailable();
    return this.connection;
  }

  /** End the connection for good; the calls in flight fail with DaemonUnavailable. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.connection?.close(closed());
    this.#wake();
  }

  async #connect(attempt: number): Promise<void> {
    for (const path of this.paths) {
      try {
        const connection = await Connection.open(path, {
          onCapacity: (capacity) => this.#onCapacity(capacity),
          onStatus: (status) => tell(this.statusListeners, status),
          onLost: (loss) => this.#onLost(loss),
        });
        if (this.#closed) connection.close(closed());
        else this.connection = connection;
        break;
      } catch (error) {
        this.#failures.set(path, reason(error));
      }
    }
    this.#tried = true;
    if (!this.connection && !this.#closed) this.#later(attempt);
    this.#wake();
  }

  #later(attempt: number): void {
    this.#timer = setTimeout(() => void this.#connect(attempt + 1), connectDelayMs(attempt));
    if (this.#waiting.size === 0) this.#timer.unref();
  }

  #onCapacity(capacity: Capacity): void {
    this.#declare(capacity.capacity);
  }

  #onLost(loss: CardError): void {
    this.connection = undefined;
    this.#declare(1);
    tell(this.lossListeners, loss);
    if (!this.#closed) this.#later(0);
    this.#wake();
  }

  #declare(capacity: number): void {
    if (capacity === this.#known) return;
    this.#known = capacity;
    tell(this.capacityListeners, capacity);
  }

  /** Wait for the next change of the connection, or for one of the signals. */
  #change(...signals: (AbortSignal | undefined)[]): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        this.#waiting.delete(done);
        for (const signal of signals) signal?.removeEventListener("abort", done);
        resolve();
      };
      this.#waiting.add(done);
      for (const signal of signals) signal?.addEventListener("abort", done);
    });
  }

  #wake(): void {
    for (const done of [...this.#waiting]) done();
  }

  #unavailable(): ConnectTimeout {
    const tried = this.paths.map((path) => `${path} (${this.#failures.get(path) ?? "no answer"})`).join(", ");
    return new ConnectTimeout(`no daemon answers on ${tried}`, this.paths);
  }
}

function tell<T>(listeners: Iterable<Listener<T>>, value: T): void {
  for (const listener of [...listeners]) listener(value);
}

function closed(): DaemonUnavailable {
  return new DaemonUnavailable("the client is closed");
}

function reason(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT") return "no such file or directory";
  if (code === "ECONNREFUSED") return "connection refused";
  return code ?? String(error);
}
