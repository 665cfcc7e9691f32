"""The errors of the client: one small tree, and the class of each reason."""

from pathlib import Path
from typing import Any

from car_protocol.errors import ErrorObject

# Members of an error's data that are shown after its message.
_FACTS = {
    "overloaded": ("why",),
    "quota": ("limit", "value", "used"),
    "model_unavailable": ("why", "lacks"),
    "context_exceeded": ("param", "prompt_tokens", "context_tokens", "why"),
    "limit": ("limit", "value"),
}


class CardError(Exception):
    """The base of every error that this package raises on purpose."""


class BadSocketPath(CardError, ValueError):
    """The socket path is longer than the platform can connect to."""


class DaemonUnavailable(CardError):
    """No daemon can be reached, or the client is closed; `tried` are the paths."""

    def __init__(self, message: str, tried: tuple[Path, ...] = ()) -> None:
        super().__init__(message, tried)
        self.message = message
        self.tried = tried

    def __str__(self) -> str:
        return self.message


class ConnectTimeout(DaemonUnavailable, TimeoutError):
    """No daemon answered on the paths `tried` within `connect_timeout`."""


class ConnectionLost(DaemonUnavailable):
    """The connection ended with the request in flight."""


class RequestTimeout(CardError, TimeoutError):
    """The daemon sent nothing within the client's `timeout`; the request was cancelled there."""


class ProtocolError(CardError):
    """The daemon sent a message that the protocol forbids, such as a stream with a gap."""


class RequestError(CardError):
    """An error that the daemon answered; `reason` is a key of car_protocol.errors.REASONS, `data` holds its facts."""

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        names = [name for name in _FACTS.get(self.reason, ()) if self.data.get(name) is not None]
        facts = ", ".join(f"{name} {self.data[name]}" for name in names)
        return f"{self.message}; {facts}" if facts else self.message

    @property
    def reason(self) -> str:
        """The stable name of the error, such as `overloaded`."""
        return str(self.data.get("reason", ""))

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later."""
        return self.data.get("retryable") is True

    @property
    def started(self) -> bool:
        """True if a token was produced before the error."""
        return self.data.get("started") is True

    @property
    def retry_after_ms(self) -> int | None:
        """Milliseconds after which a retry may succeed; None if the daemon has no estimate."""
        after = self.data.get("retry_after_ms")
        return after if isinstance(after, int) else None


class InvalidParams(RequestError):
    """A member of the request is missing, unknown, ill-typed or out of range."""

    def __str__(self) -> str:
        line = f" (line {self.data['line']})" if "line" in self.data else ""
        return f"{self.param}: {self.data.get('why', self.message)}{line}"

    @property
    def param(self) -> str:
        """The member at fault."""
        return str(self.data.get("param", ""))


class RequestCancelled(RequestError):
    """The request was cancelled or superseded."""


class Overloaded(RequestError):
    """The queue is full, or no sequence is free for a request that does not wait."""


class QuotaReached(Overloaded):
    """A limit of the person is reached: `data["limit"]` names it, `retry_after_ms` says when it ends."""


class DeadlineExceeded(RequestError):
    """The request's own deadline (`timeout_ms`, `queue_timeout_ms`) passed before the first token."""


class Draining(RequestError):
    """The daemon is going down."""


class ModelUnavailable(RequestError):
    """The model is unknown, failed to load, or lacks an ability that the request needs."""


class EngineLost(RequestError):
    """The engine died while it served the request."""


class ContextExceeded(RequestError):
    """Prompt and answer do not fit the context; `param` is the question of a decision that does not."""

    @property
    def param(self) -> str:
        """The path of the question; empty if the request is no decision."""
        return str(self.data.get("param", ""))


class SlowReader(RequestError):
    """The stream was read too slowly."""


class LimitReached(RequestError):
    """A limit of the connection was reached: `data["limit"]` names it, `data["value"]` is its bound."""


class NotPermitted(RequestError):
    """The caller lacks the permission for the method or the request."""


BY_REASON: dict[str, type[RequestError]] = {
    "invalid_params": InvalidParams,
    "cancelled": RequestCancelled,
    "overloaded": Overloaded,
    "quota": QuotaReached,
    "deadline_exceeded": DeadlineExceeded,
    "draining": Draining,
    "model_unavailable": ModelUnavailable,
    "engine_lost": EngineLost,
    "context_exceeded": ContextExceeded,
    "slow_reader": SlowReader,
    "limit": LimitReached,
    "not_permitted": NotPermitted,
}


def from_object(error: ErrorObject) -> RequestError:
    """Return the exception for a response's `error` member."""
    data = error.data if isinstance(error.data, dict) else {}
    kind = BY_REASON.get(str(data.get("reason", "")), RequestError)
    return kind(error.code, error.message, data)
