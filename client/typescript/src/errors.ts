// The errors of the client: one small tree, and the class of each reason that the daemon names.

import type { CODES } from "./protocol.js";

/** A key of the protocol's table of errors, such as `overloaded`. */
export type Reason = keyof typeof CODES;

/** The base of every error that this package throws on purpose. */
export class CardError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** The socket path is longer than the platform can connect to. */
export class BadSocketPath extends CardError {}

/** No daemon can be reached, or the client is closed; `tried` are the paths. */
export class DaemonUnavailable extends CardError {
  constructor(
    message: string,
    readonly tried: readonly string[] = [],
  ) {
    super(message);
  }
}

/** No daemon answered on the paths `tried` within `connectTimeoutMs`. */
export class ConnectTimeout extends DaemonUnavailable {}

/** The connection ended with the request in flight. */
export class ConnectionLost extends DaemonUnavailable {}

/** The daemon sent nothing within `timeoutMs`; the request was cancelled there. */
export class RequestTimeout extends CardError {}

/** The daemon sent a message that the protocol forbids, such as a stream with a gap. */
export class ProtocolError extends CardError {}

/** An error that the daemon answered: its code, and its facts in `data`. */
export class RequestError extends CardError {
  constructor(
    readonly code: number,
    message: string,
    readonly data: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** The stable name of the error, such as `overloaded`; empty if the daemon named none. */
  get reason(): Reason | "" {
    return typeof this.data.reason === "string" ? (this.data.reason as Reason) : "";
  }

  /** Whether the same request may succeed later. */
  get retryable(): boolean {
    return this.data.retryable === true;
  }

  /** Whether a token was produced before the error. */
  get started(): boolean {
    return this.data.started === true;
  }

  /** Milliseconds after which a retry may succeed; undefined if the daemon has no estimate. */
  get retryAfterMs(): number | undefined {
    return typeof this.data.retry_after_ms === "number" ? this.data.retry_after_ms : undefined;
  }
}

/** A member of the request is missing, unknown, ill-typed or out of range; `param` names it. */
export class InvalidParams extends RequestError {
  constructor(code: number, message: string, data: Readonly<Record<string, unknown>> = {}) {
    const line = data.line === undefined ? "" : ` (line ${String(data.line)})`;
    super(code, `${String(data.param ?? "")}: ${String(data.why ?? message)}${line}`, data);
  }

  get param(): string {
    return String(this.data.param ?? "");
  }
}

/** The request was cancelled or superseded. */
export class RequestCancelled extends RequestError {}

/** The queue is full, or no sequence is free for a request that does not wait. */
export class Overloaded extends RequestError {}

/** A limit of the person is reached: `data.limit` names it, `retry_after_ms` says when it ends. */
export class QuotaReached extends Overloaded {}

/** The request's own deadline (`timeout_ms`, `queue_timeout_ms`) passed before the first token. */
export class DeadlineExceeded extends RequestError {}

/** The daemon is going down. */
export class Draining extends RequestError {}

/** The model is unknown, failed to load, or lacks an ability that the request needs. */
export class ModelUnavailable extends RequestError {}

/** The engine died while it served the request. */
export class EngineLost extends RequestError {}

/** Prompt and answer do not fit the context; `param` is the question of a decision that does not. */
export class ContextExceeded extends RequestError {
  get param(): string {
    return String(this.data.param ?? "");
  }
}

/** The stream was read too slowly. */
export class SlowReader extends RequestError {}

/** A limit of the connection was reached: `data.limit` names it, `data.value` is its bound. */
export class LimitReached extends RequestError {}

/** The caller lacks the permission for the method or the request. */
export class NotPermitted extends RequestError {}

const BY_REASON: Partial<Record<Reason, typeof RequestError>> = {
  invalid_params: InvalidParams,
  cancelled: RequestCancelled,
  overloaded: Overloaded,
  quota: QuotaReached,
  deadline_exceeded: DeadlineExceeded,
  draining: Draining,
  model_unavailable: ModelUnavailable,
  engine_lost: EngineLost,
  context_exceeded: ContextExceeded,
  slow_reader: SlowReader,
  limit: LimitReached,
  not_permitted: NotPermitted,
};

/** The `error` member of a response. */
export interface ErrorObject {
  code: number;
  message: string;
  data?: unknown;
}

/** Return the exception for the `error` member of a response. */
export function fromObject(error: ErrorObject): RequestError {
  const data =
    typeof error.data === "object" && error.data !== null ? (error.data as Record<string, unknown>) : {};
  const Kind = BY_REASON[data.reason as Reason] ?? RequestError;
  return new Kind(error.code, error.message, data);
}
