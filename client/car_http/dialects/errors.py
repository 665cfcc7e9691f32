"""Errors in the three dialects' shapes; the path of a request decides which, and the client on a shared path."""

import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from car_http.problems import Problem

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "overloaded_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


# Of a path: an index, a name in quotes, or a name.
_STEP = re.compile(r"""\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]|([^.\[\]]+)""")
_PLAIN = re.compile(r"[^.\[\]\"]+")


class OpenAIFault(Struct, frozen=True):
    """A fault; `code` is stable, `param` the member at fault."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(Struct, frozen=True):
    """An error as OpenAI's clients read it."""

    error: OpenAIFault


class AnthropicFault(Struct, frozen=True):
    """A fault and its kind."""

    type: str
    message: str


class AnthropicError(Struct, frozen=True):
    """An error as Anthropic's clients read it."""

    error: AnthropicFault
    type: Literal["error"] = "error"


class OllamaError(Struct, frozen=True):
    """An error as Ollama's clients read it."""

    error: str


class SystemOneFault(Struct, frozen=True):
    """A member at fault: its path, and what is wrong."""

    loc: list[str | int]
    msg: str
    type: str


class SystemOneReason(Struct, frozen=True):
    """An error that is not a member's."""

    error_type: str
    message: str


class SystemOneError(Struct, frozen=True):
    """An error as TypeSafe's clients read it."""

    detail: list[SystemOneFault] | SystemOneReason


# Codes of this status that are a limit of the caller's own; the others say that the machine is busy.
_LIMITED = 429
_LIMITS = frozenset({"quota_exceeded", "too_many_wrong_keys", "too_many_streams"})


class Dialect(Struct, frozen=True):
    """The errors of the paths that begin with `prefix`; `statuses` has the statuses that differ from the table's."""

    prefix: str
    kind: type[Struct]
    shape: Callable[[Problem], Struct]
    statuses: dict[int, int] = {}

    def status(self, problem: Problem) -> int:
        """Return the dialect's own status of a problem; a limit of the caller's own stays what it is."""
        return problem.status if problem.code in _LIMITS else self.statuses.get(problem.status, problem.status)

    def possible(self, status: int) -> set[int]:
        """Return what problems of a status have in this dialect."""
        return {self.statuses.get(status, status), *([status] if status == _LIMITED else [])}


def dialect_of(path: str, *, anthropic: bool = False) -> Dialect:
    """Return the dialect of a path; `anthropic` says that one of Anthropic's clients sent the request."""
    found = next((each for each in _DIALECTS if path.startswith(each.prefix)), None)
    return found or (_MESSAGES if anthropic else _OPENAI)


def openai_error(problem: Problem) -> OpenAIError:
    """Return an error as OpenAI's clients read it."""
    kind = _OPENAI_KINDS.get(problem.status, _general(problem, "server_error"))
    return OpenAIError(OpenAIFault(problem.message, kind, problem.param, problem.code))


def anthropic_error(problem: Problem) -> AnthropicError:
    """Return an error as Anthropic's clients read it."""
    kind = _ANTHROPIC_KINDS.get(problem.status, _general(problem, "api_error"))
    if problem.code in _LIMITS:
        kind = "rate_limit_error"
    message = problem.message
    if problem.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    return AnthropicError(AnthropicFault(kind, message))


def ollama_error(problem: Problem) -> OllamaError:
    """Return an error as Ollama's clients read it."""
    return OllamaError(problem.message)


def systemone_error(problem: Problem) -> SystemOneError:
    """Return an error as TypeSafe's clients read it."""
    if problem.status == 400:
        steps = _STEP.findall(problem.param or "")
        path = [int(index) if index else name or msgspec.json.decode(quoted) for index, quoted, name in steps]
        return SystemOneError([SystemOneFault(["body", *path], problem.message, problem.code)])
    kind = _OPENAI_KINDS.get(problem.status, _general(problem, "server_error"))
    return SystemOneError(SystemOneReason(kind, problem.message))


def beneath(path: str, name: str) -> str:
    """Return the path of a member that a client named; a name that would read as several steps is in quotes."""
    return f"{path}.{name}" if _PLAIN.fullmatch(name) else f"{path}[{msgspec.json.encode(name).decode()}]"


def _general(problem: Problem, of_server: str) -> str:
    return "invalid_request_error" if problem.status < 500 else of_server


def encoded(shape: Struct) -> bytes:
    """Return an error's shape as JSON text."""
    return msgspec.json.encode(shape)


_MESSAGES = Dialect("/v1/messages", AnthropicError, anthropic_error, {429: 529})
# Errors of a member of the body have their own status.
_DECISIONS = [
    Dialect(prefix, SystemOneError, systemone_error, {400: 422}) for prefix in ("/v1/systemone", "/systemone")
]
# LM Studio's paths are below Ollama's.
_DIALECTS = (
    _MESSAGES,
    Dialect("/api/v0/", OpenAIError, openai_error),
    Dialect("/api/", OllamaError, ollama_error),
    *_DECISIONS,
)
_OPENAI = Dialect("", OpenAIError, openai_error)
