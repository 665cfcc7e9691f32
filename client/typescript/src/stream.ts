// A streamed answer.

import { joined, type WholeAnswer } from "./answers.js";
import type { Call } from "./call.js";
import { CardError } from "./errors.js";
import type { Answer, Chunk } from "./protocol.js";
import type { Retries } from "./retries.js";

/**
 * The chunks of one answer. The request is sent with the first step; leaving a `for await` early cancels it.
 *
 * After the last chunk `answer` is the whole answer, its text included; it is undefined before.
 */
export class InferStream implements AsyncIterableIterator<Chunk> {
  answer: WholeAnswer | undefined;
  #chunks: Chunk[] = [];
  #call: Call | undefined; // undefined before the first step, and between attempts
  #over = false;
  #cancelled = false;

  /** @internal */
  constructor(
    private readonly begin: () => Promise<Call>,
    private readonly retries: Retries,
    private readonly timeoutMs: number,
    private readonly pause: (ms: number) => Promise<void>,
  ) {}

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Return the next chunk; rejects with the errors of `infer`, and SlowReader if the chunks were read too slowly. */
  async next(): Promise<IteratorResult<Chunk, undefined>> {
    if (this.#over) return { done: true, value: undefined };
    try {
      const chunk = await this.#nextChunk();
      if (chunk) {
        this.#chunks.push(chunk);
        return { done: false, value: chunk };
      }
      this.#over = true;
      return { done: true, value: undefined };
    } catch (error) {
      if (this.#over) return { done: true, value: undefined }; // `return` was called meanwhile
      this.#over = true;
      this.#call?.cancel();
      throw error;
    }
  }

  /** Cancel the request if it still runs, and end the iteration; `break` does so. */
  async return(): Promise<IteratorResult<Chunk, undefined>> {
    this.#over = true;
    this.cancel();
    return { done: true, value: undefined };
  }

  /** Cancel the request at the daemon: chunks that it sent before still come, then RequestCancelled. */
  cancel(): void {
    this.#cancelled = true;
    this.#call?.cancel();
  }

  /** Return the next chunk, undefined at the end; until the first chunk came the request may be sent again. */
  async #nextChunk(): Promise<Chunk | undefined> {
    for (;;) {
      try {
        this.#call ??= await this.#begun();
        const call = this.#call;
        const chunk = await call.next(this.timeoutMs);
        if (!chunk) this.answer = joined((await call.result) as Answer, this.#chunks);
        return chunk;
      } catch (error) {
        if (!(error instanceof CardError) || this.#cancelled || this.#call?.received) throw error;
        const pauseMs = this.retries.pauseMs(error, this.timeoutMs);
        this.#call = undefined;
        await this.pause(pauseMs);
      }
    }
  }

  async #begun(): Promise<Call> {
    const call = await this.begin();
    if (this.#cancelled) call.cancel();
    return call;
  }
}
