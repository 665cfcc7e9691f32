"""What can go wrong: one small tree, and which class stands for which reason."""

from pathlib import Path
from typing import Any

from car_protocol.errors import ErrorObject


class CardError(Exception):
    """Everything this package raises on purpose."""


class BadSocketPath(CardError, ValueError):
    """The socket path is longer than the platform can connect to."""


class DaemonUnavailable(CardError):
    """No daemon answers on the paths `tried`, or the connection ended with the request in flight."""

    def __init__(self, message: str, tried: tuple[Path, ...] = ()) -> None:
        super().__init__(message, tried)
        self.message = message
        self.tried = tried

    def __str__(self) -> str:
        return self.message


class ContractBroken(CardError):
    """The daemon sent what the protocol does not allow, a gap in a stream for example."""


class RequestError(CardError):
    """The daemon's error; `reason` is a key of car_protocol.errors.REASONS, `data` holds its facts."""

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message

    @property
    def reason(self) -> str:
        """The stable name of what went wrong."""
        return str(self.data.get("reason", ""))

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.data.get("retryable") is True

    @property
    def started(self) -> bool:
        """Whether any token was produced."""
        return self.data.get("started") is True

    @property
    def retry_after_ms(self) -> int | None:
        """When to try again, where the daemon can tell."""
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
    """There is no room for the request now."""


class DeadlineExceeded(RequestError):
    """The deadline passed before the first token."""


class Draining(RequestError):
    """The daemon is going down."""


class ModelUnavailable(RequestError):
    """The model is unknown, failed, or cannot do what was asked."""


class EngineLost(RequestError):
    """The engine died while it served the request."""


class ContextExceeded(RequestError):
    """Prompt and answer do not fit the context."""


class SlowReader(RequestError):
    """The stream was read too slowly."""


class LimitReached(RequestError):
    """A limit of the connection was reached: `data["limit"]` names it, `data["value"]` is its bound."""


class NotPermitted(RequestError):
    """This caller may not do that."""


BY_REASON: dict[str, type[RequestError]] = {
    "invalid_params": InvalidParams,
    "cancelled": RequestCancelled,
    "overloaded": Overloaded,
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
