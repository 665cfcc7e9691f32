// One connection to the daemon: requests become frames, and received frames reach their calls.

import { connect, type Socket } from "node:net";
import {
  type CardError,
  ConnectionLost,
  type ErrorObject,
  fromObject,
  LimitReached,
  ProtocolError,
  RequestCancelled,
} from "./errors.js";
import {
  AT_ONCE,
  type Capacity,
  type Chunk,
  CODES,
  type LoadProgress,
  MAX_FRAME_BYTES,
  MAX_IN_FLIGHT,
  type Progress,
  type Status,
} from "./protocol.js";

// An answer may be longer than a request: escapes make up to six bytes of one.
const MAX_INCOMING_BYTES = 64 * 1024 * 1024;
const NEWLINE = 0x0a;
const UNREADABLE: readonly number[] = [CODES.parse_error, CODES.invalid_request];

interface Message {
  id?: number | string | null;
  method?: string;
  params?: unknown;
  result?: unknown;
  error?: ErrorObject;
}

/** Whoever waits for a call: each function is called as soon as the daemon's message has come. */
export interface Receiver {
  onResult(result: unknown): void;
  onError(error: CardError): void;
  onChunk?(chunk: Chunk): void;
  onProgress?(progress: Progress | LoadProgress): void;
}

/** A live connection, which has subscribed to the capacity; `onLost` is called once, at its end. */
export class Connection {
  /** The daemon's figure; 1 until it has answered, and after the end. */
  capacity = 1;
  /** The reason for which the connection ended; undefined while it lives. */
  loss: CardError | undefined;
  #socket: Socket;
  #nextId = 1;
  #maxFrameBytes = MAX_FRAME_BYTES;
  #maxInFlight = MAX_IN_FLIGHT;
  #calls = new Map<number, Receiver>();
  #unsent = new Map<number, Buffer>(); // the frames of these beyond that bound, the oldest first
  #atOnce = new Set<number>(); // these that do not count towards it
  #parts: Buffer[] = []; // of the frame that has not ended
  #bytes = 0; // in these parts
  #refusal: CardError | undefined; // the last error that names no request
  #held = 0; // calls in flight and subscriptions, which keep the process alive

  private constructor(
    socket: Socket,
    private readonly events: {
      onCapacity(capacity: Capacity): void;
      onStatus(status: Status): void;
      onLost(loss: CardError): void;
    },
  ) {
    this.#socket = socket;
    socket.on("data", (data: Buffer) => this.#receive(data));
    socket.on("error", () => {}); // "close" follows and says all that a caller can use
    socket.on("close", () => this.#lose());
    socket.unref();
    this.send(
      "inference/capacity",
      { subscribe: true },
      {
        onResult: (result) => this.#onCapacity(result as Capacity),
        onError: () => {}, // the capacity stays 1; each call has its own error
      },
    );
  }

  /** Connect to one path; rejects with the system's error. */
  static open(path: string, events: Connection["events"]): Promise<Connection> {
    return new Promise((resolve, reject) => {
      const socket = connect(path);
      socket.once("error", reject);
      socket.once("connect", () => {
        socket.removeListener("error", reject);
        resolve(new Connection(socket, events));
      });
    });
  }

  /**
   * Send a request and return its id; the receiver hears of its end exactly once.
   *
   * The daemon refuses more requests of a connection than `max_in_flight`: further requests wait here for an end,
   * except for methods that are answered at once.
   *
   * @throws LimitReached if the request is longer than a frame may be.
   */
  send(method: string, params: object, receiver: Receiver): number {
    const id = this.#nextId;
    this.#nextId += 1;
    const frame = Buffer.from(`${JSON.stringify({ jsonrpc: "2.0", method, id, params })}\n`);
    if (frame.length - 1 > this.#maxFrameBytes) {
      const data = {
        reason: "limit",
        retryable: false,
        limit: "max_frame_bytes",
        value: this.#maxFrameBytes,
      };
      throw new LimitReached(CODES.limit, "a limit of the connection was reached", data);
    }
    if (this.loss) {
      receiver.onError(this.loss);
      return id;
    }
    this.#calls.set(id, receiver);
    if (AT_ONCE.includes(method)) {
      this.#atOnce.add(id);
      this.#socket.write(frame);
    } else {
      this.#unsent.set(id, frame);
      this.#sendDue();
    }
    return id;
  }

  /** Cancel a request at the daemon; nothing happens if it has ended. */
  cancel(id: number): void {
    if (this.#unsent.delete(id)) {
      const data = { reason: "cancelled", retryable: false, started: false };
      this.#take(id)?.onError(new RequestCancelled(CODES.cancelled, "the request was cancelled", data));
      return;
    }
    if (!this.#calls.has(id)) return;
    this.#socket.write(`${JSON.stringify({ jsonrpc: "2.0", method: "$/cancelRequest", params: { id } })}\n`);
  }

  /** Keep the process alive until `release` was called as often. */
  hold(): void {
    if (this.#held === 0) this.#socket.ref();
    this.#held += 1;
  }

  /** Let the process end if nothing else keeps it alive. */
  release(): void {
    this.#held -= 1;
    if (this.#held === 0) this.#socket.unref();
  }

  /** Fail the calls in flight and end the connection. */
  close(reason: CardError): void {
    this.#lose(reason);
    this.#socket.destroy();
  }

  #receive(data: Buffer): void {
    let start = 0;
    for (let end = data.indexOf(NEWLINE); end >= 0; end = data.indexOf(NEWLINE, start)) {
      this.#parts.push(data.subarray(start, end));
      const frame = this.#parts.length === 1 ? data.subarray(start, end) : Buffer.concat(this.#parts);
      this.#parts = [];
      this.#bytes = 0;
      start = end + 1;
      if (this.loss || !this.#route(frame)) return;
    }
    if (start < data.length) {
      this.#parts.push(data.subarray(start));
      this.#bytes += data.length - start;
    }
    if (this.#bytes > MAX_INCOMING_BYTES) {
      this.close(new ProtocolError(`the daemon sent a frame of more than ${MAX_INCOMING_BYTES} bytes`));
    }
  }

  /** Pass a frame to whom it is for; false if it ended the connection. */
  #route(frame: Buffer): boolean {
    let message: Message;
    try {
      message = JSON.parse(frame.toString("utf8")) as Message;
    } catch {
      this.close(new ProtocolError("the daemon sent a frame that is not a JSON-RPC message"));
      return false;
    }
    if (message.method !== undefined) {
      this.#notify(message.method, message.params);
    } else if (typeof message.id === "number") {
      const receiver = this.#take(message.id);
      if (message.error) receiver?.onError(fromObject(message.error));
      else receiver?.onResult(message.result);
    } else if (message.error) {
      return this.#refuse(message.error);
    }
    return true;
  }

  #notify(method: string, params: unknown): void {
    switch (method) {
      case "infer_stream/chunk":
        this.#calls.get((params as Chunk).id as number)?.onChunk?.(params as Chunk);
        break;
      case "infer_stream/progress":
      case "models/progress":
        this.#calls.get((params as Progress).id as number)?.onProgress?.(params as Progress | LoadProgress);
        break;
      case "inference/capacity_changed":
        this.#onCapacity(params as Capacity);
        break;
      case "daemon/status_changed":
        this.events.onStatus(params as Status);
        break;
    }
  }

  /** Fail the call that the daemon could not read; keep any other error for the end of the connection. */
  #refuse(error: ErrorObject): boolean {
    this.#refusal = fromObject(error);
    if (!UNREADABLE.includes(error.code)) return true;
    const [only, ...others] = this.#calls;
    if (only === undefined || others.length > 0) {
      this.close(new ProtocolError(`the daemon could not read a request: ${this.#refusal.message}`));
      return false;
    }
    this.#take(only[0])?.onError(this.#refusal);
    this.#refusal = undefined;
    return true;
  }

  /** Take a call that has ended out of the calls in flight; the oldest unsent request takes its place. */
  #take(id: number): Receiver | undefined {
    const receiver = this.#calls.get(id);
    this.#calls.delete(id);
    this.#atOnce.delete(id);
    this.#sendDue();
    return receiver;
  }

  #sendDue(): void {
    for (const [id, frame] of this.#unsent) {
      if (this.#calls.size - this.#unsent.size - this.#atOnce.size >= this.#maxInFlight) return;
      this.#unsent.delete(id);
      this.#socket.write(frame);
    }
  }

  #onCapacity(capacity: Capacity): void {
    this.capacity = capacity.capacity;
    this.#maxFrameBytes = capacity.limits?.max_frame_bytes ?? MAX_FRAME_BYTES;
    this.#maxInFlight = capacity.limits?.max_in_flight ?? MAX_IN_FLIGHT;
    this.events.onCapacity(capacity);
    this.#sendDue();
  }

  #lose(reason?: CardError): void {
    if (this.loss) return;
    this.loss = reason ?? this.#refusal ?? new ConnectionLost("the connection to the daemon was lost");
    this.capacity = 1;
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    this.#unsent.clear();
    this.#atOnce.clear();
    for (const call of calls) call.onError(this.loss);
    this.events.onLost(this.loss);
  }
}
