"""The table of errors: one fixed code, message and retry hint per reason."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class Reason(Struct, frozen=True):
    """What every error of one reason has in common."""

    code: int
    message: str
    retryable: bool = False


REASONS: dict[str, Reason] = {
    "parse_error": Reason(-32700, "the frame is not a JSON text"),
    "invalid_request": Reason(-32600, "the frame is not a JSON-RPC 2.0 request"),
    "method_not_found": Reason(-32601, "there is no such method; rpc.discover lists them"),
    "invalid_params": Reason(-32602, "a member of params is missing, unknown, ill-typed or out of range"),
    "internal_error": Reason(-32603, "the daemon failed; its log says why", retryable=True),
    "cancelled": Reason(-32800, "the request was cancelled"),
    "overloaded": Reason(1001, "there is no room for this request now", retryable=True),
    "deadline_exceeded": Reason(1002, "the deadline passed before the first token", retryable=True),
    "draining": Reason(1003, "the daemon is going down", retryable=True),
    "model_unavailable": Reason(1004, "the model cannot serve this request"),
    "engine_lost": Reason(1005, "the engine died while it served this request", retryable=True),
    "context_exceeded": Reason(1006, "prompt and answer do not fit the context"),
    "slow_reader": Reason(1007, "the client read too slowly"),
    "limit": Reason(1008, "a limit of the connection was reached"),
    "not_permitted": Reason(1009, "this caller may not do that"),
}


class ErrorObject(Struct, frozen=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: dict[str, Any] | UnsetType = UNSET


class RpcError(Exception):
    """An answer that is an error; `reason` is a key of REASONS, `data` adds facts, never input."""

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
