"""The table of errors: one fixed code, message and retry hint per reason."""

from typing import Any

from msgspec import Struct


class Reason(Struct, frozen=True):
    """The common part of all errors of one reason; `when` is for the documentation."""

    code: int
    message: str
    when: str
    retryable: bool = False


REASONS: dict[str, Reason] = {
    "parse_error": Reason(-32700, "the frame is not a JSON text", "see the table of frames"),
    "invalid_request": Reason(
        -32600, "the frame is not a JSON-RPC 2.0 request", "see the table of frames; `data.id` of an id in flight"
    ),
    "method_not_found": Reason(-32601, "the method does not exist; rpc.discover lists all methods", ""),
    "invalid_params": Reason(
        -32602,
        "a member of params is missing, unknown, ill-typed or out of range",
        "`data.param` names the member, `data.why` what was expected of it, or what is wrong with a grammar, a schema, "
        "an image or a chat template, `data.place` the place in a schema (a JSON pointer). A grammar may become too "
        "complex in the middle of an answer, which ends then",
    ),
    "internal_error": Reason(-32603, "the daemon failed; its log says why", "a defect", retryable=True),
    "cancelled": Reason(
        -32800,
        "the request was cancelled",
        "by its client, a newer request (`data.superseded`) or its user; `data.chunks` is how many of its chunks were "
        "sent",
    ),
    "overloaded": Reason(
        1001,
        "the daemon has no room for this request now",
        "`data.why`: `no free sequence`, `queue full`, `dropped oldest`, `above its share`; with `policy`, `queued`, "
        "`queue_limit`, `user_queued` and `user_share` (the user's requests in the queue and its share of it) and, "
        "once a request has ended, `retry_after_ms`",
        retryable=True,
    ),
    "quota": Reason(
        1001,
        "a limit of this person is reached",
        "`data.limit` names it: `tokens_per_day` or `in_flight`, `data.value` is its value, `data.used` what was used; "
        "`retry_after_ms` and, of a day's tokens, `ends_at` (seconds since 1970) say when it ends",
        retryable=True,
    ),
    "deadline_exceeded": Reason(
        1002,
        "the deadline passed before there was an answer",
        "`timeout_ms` or `queue_timeout_ms`",
        retryable=True,
    ),
    "draining": Reason(1003, "the daemon is going down", "its successor may accept it", retryable=True),
    "model_unavailable": Reason(
        1004,
        "the model cannot serve this request",
        "unknown, failed, or without room (`data.why`, `needed_bytes`, `free_bytes`); `data.lacks` names what it "
        "lacks: `chat_template`, `tools`, `images` (with `data.why` if the daemon lacks Pillow), `audio`, "
        "`adapter`, `generate`, `fill`, `thinking`, `embed`, `rerank`, `device`, `tokens`, `reproducible` or "
        "`decisions` (these three with `data.why`)",
    ),
    "engine_lost": Reason(
        1005,
        "the engine died while it served this request",
        "after something of it was sent, or twice under it: then `data.quarantined` is true and `retryable` false, "
        "since it may be the cause",
        retryable=True,
    ),
    "context_exceeded": Reason(
        1006,
        "the prompt leaves no room in the context for one token",
        "`data` has `prompt_tokens` (null if nothing counted them), `max_tokens`, `context_tokens`; if the memory "
        "holds a longer context for one sequence, `longest_tokens`, with the settings for it in `why`; of `decide` "
        "`param`, the question that does not fit",
    ),
    "slow_reader": Reason(
        1007,
        "the client read too slowly",
        "a stream waited `slow_reader_ms` for it, or more than `max_output_bytes`; see [slow readers](#slow-readers)",
    ),
    "limit": Reason(1008, "a limit of the connection was reached", "`data.limit` names it, `data.value` is its value"),
    "not_permitted": Reason(
        1009,
        "this caller may not do this",
        "a method for administrators, a request of another user, or a `person` that this process may not name or that "
        "does not exist (`data.why`)",
    ),
}


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class RpcError(Exception):
    """An error as the answer; `reason` is a key of REASONS, `data` adds facts, never input."""

    def __init__(self, reason: str, *, started: bool = False, **data: Any) -> None:
        super().__init__(REASONS[reason].message)
        self.reason = reason
        self.started = started
        self.data = data

    def as_object(self) -> ErrorObject:
        """Return the error as it goes over the wire."""
        kind = REASONS[self.reason]
        data = {"reason": self.reason, "retryable": kind.retryable, "started": self.started, **self.data}
        return ErrorObject(kind.code, kind.message, data)
