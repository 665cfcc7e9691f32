// One attempt of one call: from its frame to its end, with the chunks between them.

import type { Connection } from "./connection.js";
import { type CardError, ProtocolError, RequestTimeout } from "./errors.js";
import type { Answer, Chunk, LoadProgress, Progress } from "./protocol.js";

/** What a caller may set for each call. */
export interface CallOptions {
  /** Cancels the request at the daemon; the call rejects with the signal's reason at once. */
  signal?: AbortSignal | undefined;
  /** Milliseconds that this call may take, in place of the client's `timeoutMs`. */
  timeoutMs?: number | undefined;
  /** Told of the progress that the params ask for (`progress: true`). */
  onProgress?: ((progress: Progress | LoadProgress) => void) | undefined;
}

/** A request on its way: `result` settles at its end; `next` waits for the chunks of a stream before it. */
export class Call {
  readonly result: Promise<unknown>;
  #chunks: Chunk[] = []; // received and not yet taken
  #received = 0;
  #settled = false;
  #wake: (() => void) | undefined;
  #id: number;
  #settle!: (error: unknown, result?: unknown) => void;

  constructor(
    private readonly connection: Connection,
    method: string,
    params: object,
    private readonly options: CallOptions = {},
  ) {
    this.result = new Promise((resolve, reject) => {
      this.#settle = (error, result) => (error === undefined ? resolve(result) : reject(error));
    });
    this.result.catch(() => {}); // whoever waits for it hears of the error; a call that nobody waits for may fail
    connection.hold();
    try {
      this.#id = connection.send(method, params, {
        onResult: (result) => this.#end(undefined, result),
        onError: (error) => this.#end(error),
        onChunk: (chunk) => this.#add(chunk),
        onProgress: (progress) => options.onProgress?.(progress),
      });
    } catch (error) {
      connection.release();
      throw error;
    }
    options.signal?.addEventListener("abort", this.#aborted);
  }

  /** The chunks that came so far. */
  get received(): number {
    return this.#received;
  }

  /** Return the next chunk, or undefined after the last; rejects with RequestTimeout or the call's error. */
  async next(timeoutMs: number): Promise<Chunk | undefined> {
    if (this.#chunks.length === 0 && !this.#settled) {
      await this.#before(timeoutMs, new Promise<void>((resolve) => (this.#wake = resolve)));
    }
    const chunk = this.#chunks.shift();
    if (chunk) return chunk;
    const answer = (await this.result) as Answer;
    if (answer.chunks !== this.#received) {
      throw new ProtocolError(`the stream has ${answer.chunks} chunks, ${this.#received} came`);
    }
    return undefined;
  }

  /** Return the result; rejects with RequestTimeout after `timeoutMs`, or with the call's error. */
  async whole(timeoutMs: number): Promise<unknown> {
    await this.#before(timeoutMs, this.result);
    return this.result;
  }

  /** Cancel the request at the daemon, which then ends it with RequestCancelled. */
  cancel(): void {
    if (!this.#settled) this.connection.cancel(this.#id);
  }

  async #before(timeoutMs: number, event: Promise<unknown>): Promise<void> {
    if (timeoutMs === Number.POSITIVE_INFINITY) {
      await event;
      return;
    }
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<never>((_, reject) => {
      const late = () => {
        const error = new RequestTimeout(
          `the daemon sent nothing within ${timeoutMs} ms; raise \`timeoutMs\` or ask for less`,
        );
        this.cancel();
        this.#end(error);
        reject(error);
      };
      timer = setTimeout(late, timeoutMs);
    });
    try {
      await Promise.race([event, timeout]);
    } finally {
      clearTimeout(timer);
    }
  }

  #add(chunk: Chunk): void {
    if (this.#settled) return;
    if (chunk.seq !== this.#received) {
      const error = new ProtocolError(
        `chunk ${chunk.seq} of a stream came in place of chunk ${this.#received}`,
      );
      this.cancel();
      this.#end(error);
      return;
    }
    this.#received += 1;
    this.#chunks.push(chunk);
    this.#wake?.();
  }

  #aborted = (): void => {
    this.cancel();
    this.#end(this.options.signal?.reason);
  };

  #end(error: CardError | unknown, result?: unknown): void {
    if (this.#settled) return;
    this.#settled = true;
    this.options.signal?.removeEventListener("abort", this.#aborted);
    this.connection.release();
    this.#settle(error, result);
    this.#wake?.();
  }
}
