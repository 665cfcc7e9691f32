// The client: one connection to the daemon, kept in the background.

import type { WholeAnswer } from "./answers.js";
import { Call, type CallOptions } from "./call.js";
import type { Connection } from "./connection.js";
import { CardError } from "./errors.js";
import type * as protocol from "./protocol.js";
import type { Methods } from "./protocol.js";
import { Reconnector } from "./reconnector.js";
import { CONNECT_TIMEOUT_MS, MAX_RETRIES, Retries } from "./retries.js";
import { candidatePaths } from "./socket-path.js";
import { StatusWatch } from "./status-watch.js";
import { InferStream } from "./stream.js";

/** The settings of a client; each may be left out. */
export interface ClientOptions {
  /** The daemon's socket; by default `CAR_SOCKET`, then this user's and the system's. */
  path?: string;
  /** Milliseconds that a call may take, retries included, and a stream to its next chunk. Without it there is no end. */
  timeoutMs?: number;
  /** Milliseconds that a call waits for a connection, within `timeoutMs`; 0 waits for one attempt. */
  connectTimeoutMs?: number;
  /** How often a call is sent again; 0 sends everything once. */
  maxRetries?: number;
}

/**
 * Return a client at once; it connects in the background, and again after each loss.
 *
 * @throws BadSocketPath if a path is longer than the platform can connect to.
 */
export function connect(options: ClientOptions = {}): Client {
  return new Client(options);
}

/**
 * One connection to the daemon. It does not keep the process alive; its calls do.
 *
 * A call is sent again up to `maxRetries` times if its error is `retryable`, or the connection was lost before anything
 * of the answer came: after the daemon's `retry_after_ms`, of at most 10 s, or after pauses of 0.25 s, 0.5 s and so on.
 * Never sent again are a stream that delivered a chunk, requests with `wait: false`, `queue: false` or `supersede`,
 * requests whose own deadline passed, calls that change the daemon, and `call`.
 *
 * Every call rejects with RequestError for an error that the daemon answered, with DaemonUnavailable if no daemon
 * answered within `connectTimeoutMs` or the connection was lost, with RequestTimeout if no answer came within
 * `timeoutMs`, and with the reason of its `signal`.
 */
export class Client {
  #reconnector: Reconnector;
  #timeoutMs: number;
  #connectTimeoutMs: number;
  #maxRetries: number;
  #statuses: StatusWatch;

  constructor(options: ClientOptions = {}) {
    this.#reconnector = new Reconnector(candidatePaths(options.path));
    this.#timeoutMs = options.timeoutMs ?? Number.POSITIVE_INFINITY;
    this.#connectTimeoutMs = options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS;
    this.#maxRetries = options.maxRetries ?? MAX_RETRIES;
    this.#statuses = new StatusWatch(this.#reconnector, (params) =>
      this.#request("daemon/status", params, {}, false),
    );
  }

  /**
   * The number of requests of the default model that run at once; reading it costs no request.
   *
   * The daemon sends it at the start of a connection and after every change; 1 until it did, and without a connection.
   */
  get capacity(): number {
    return this.#reconnector.capacity;
  }

  /** Call `listener` after every change of `capacity`; return the function that ends it. */
  subscribe(listener: (capacity: number) => void): () => void {
    this.#reconnector.capacityListeners.add(listener);
    return () => this.#reconnector.capacityListeners.delete(listener);
  }

  /** Wait until the daemon has answered; `capacity` is its figure then, which is 1 while its model loads. */
  async connected(options: CallOptions = {}): Promise<protocol.Capacity> {
    return this.#request("inference/capacity", {}, options);
  }

  /** End the connection for good; the calls in flight reject with DaemonUnavailable. */
  close(): void {
    this.#reconnector.close();
  }

  /** Return the answer to one of `prompt`, `messages` and `tokens`. */
  async infer(params: protocol.InferParams, options: CallOptions = {}): Promise<WholeAnswer> {
    return { text: "", ...(await this.#request("infer", params, options, repeatable(params))) };
  }

  /** Return the answer as an asynchronous iterator of chunks; the request is sent with the first step. */
  inferStream(params: protocol.InferParams, options: CallOptions = {}): InferStream {
    const timeoutMs = options.timeoutMs ?? this.#timeoutMs;
    return new InferStream(
      async () =>
        new Call(await this.#connection(timeoutMs, options.signal), "infer_stream", params, options),
      new Retries(repeatable(params) ? this.#maxRetries : 0),
      timeoutMs,
      (ms) => pause(ms, options.signal),
    );
  }

  /** Return the model's tokens for a text, or for a conversation those of the prompt that `infer` computes. */
  async tokenize(params: protocol.TokenizeParams, options: CallOptions = {}): Promise<number[]> {
    return (await this.#request("tokenize", params, options)).tokens ?? [];
  }

  /** Return the number of tokens that `tokenize` returns, which do not cross the socket. */
  async countTokens(params: protocol.TokenizeParams, options: CallOptions = {}): Promise<number> {
    return (await this.#request("tokenize", { ...params, count_only: true }, options)).count;
  }

  /** Return the text of tokens; bytes that are not UTF-8 become U+FFFD. */
  async detokenize(params: protocol.DetokenizeParams, options: CallOptions = {}): Promise<string> {
    return (await this.#request("detokenize", params, options)).text;
  }

  /** Return a vector for each text of `input`. */
  embed(params: protocol.EmbedParams, options: CallOptions = {}): Promise<protocol.Embeddings> {
    return this.#request("embed", params, options);
  }

  /** Return the documents by their indexes, the document that answers the query best first. */
  rerank(params: protocol.RerankParams, options: CallOptions = {}): Promise<protocol.Ranking> {
    return this.#request("rerank", params, options);
  }

  /** Return the answers to typed questions about one state, as probabilities. */
  decide(params: protocol.DecideParams, options: CallOptions = {}): Promise<protocol.Decision> {
    return this.#request("decide", params, options, repeatable(params));
  }

  /** Return the models that the daemon can serve, the default one first. */
  async models(options: CallOptions = {}): Promise<protocol.Model[]> {
    return (await this.#request("models/list", {}, options)).models;
  }

  /** Return a snapshot of the daemon's work. */
  status(options: CallOptions = {}): Promise<protocol.Status> {
    return this.#request("daemon/status", {}, options);
  }

  /** Return snapshots of the daemon's work, again and again; leaving the `for await` ends them. */
  watchStatus(intervalMs = 1_000): AsyncIterableIterator<protocol.Status> {
    return this.#statuses.watch(intervalMs);
  }

  /** Call any method of the protocol once; it is never sent again. */
  call<M extends keyof Methods>(
    method: M,
    params: Methods[M]["params"],
    options: CallOptions = {},
  ): Promise<Methods[M]["result"]> {
    return this.#request(method, params, options, false);
  }

  async #request<M extends keyof Methods>(
    method: M,
    params: Methods[M]["params"],
    options: CallOptions,
    mayRepeat = true,
  ): Promise<Methods[M]["result"]> {
    const end = performance.now() + (options.timeoutMs ?? this.#timeoutMs);
    const retries = new Retries(mayRepeat ? this.#maxRetries : 0);
    for (;;) {
      try {
        const left = end - performance.now();
        const call = new Call(await this.#connection(left, options.signal), method, params, options);
        return (await call.whole(Math.max(0, end - performance.now()))) as Methods[M]["result"];
      } catch (error) {
        if (!(error instanceof CardError)) throw error;
        await pause(retries.pauseMs(error, end - performance.now()), options.signal);
      }
    }
  }

  #connection(leftMs: number, signal?: AbortSignal): Promise<Connection> {
    return this.#reconnector.ready(Math.min(leftMs, this.#connectTimeoutMs), signal);
  }
}

/** A request that must not wait is refused for good, and a second one that supersedes could end a newer one. */
function repeatable(params: { wait?: boolean; queue?: boolean; supersede?: string | null }): boolean {
  return (params.wait ?? true) && (params.queue ?? true) && params.supersede == null;
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
