"""Errors as HTTP answers: one table from the daemon's reasons, and the three dialects' shapes."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from car_client.errors import CardError, ContextExceeded, DaemonUnavailable, InvalidParams, RequestError

RETRY_AFTER_MS = 1000


class Problem(Exception):
    """An error as the answer; `code` is stable, `param` the member at fault, `lacks` an ability of the model."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.retry = retry  # `x-should-retry`, for statuses that clients retry by themselves
        self.headers = dict(headers or {})

    @property
    def all_headers(self) -> dict[str, str]:
        """The response headers, with the time of the next attempt if one makes sense."""
        headers = dict(self.headers)
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_ms / 1000)))
            headers["retry-after-ms"] = str(self.retry_after_ms)
        return headers


class Row(Struct, frozen=True):
    """The status and code of one reason; `pauses` adds when to retry, `retry` whether clients should."""

    status: int
    code: str
    pauses: bool = False
    retry: bool | None = None


ROWS: dict[str, Row] = {
    "overloaded": Row(429, "rate_limit_exceeded", pauses=True),
    "quota": Row(429, "quota_exceeded", pauses=True),
    "deadline_exceeded": Row(504, "deadline_exceeded", retry=False),
    "draining": Row(503, "draining", pauses=True),
    "model_unavailable": Row(404, "model_not_found"),
    "engine_lost": Row(502, "engine_lost"),
    "context_exceeded": Row(400, "context_length_exceeded"),
    "slow_reader": Row(408, "slow_reader", retry=False),
    "limit": Row(400, "limit"),
    "not_permitted": Row(403, "not_permitted"),
    "invalid_params": Row(400, "invalid_value"),
    "cancelled": Row(409, "cancelled", retry=False),
}
_DEFECT = Row(500, "internal_error")
_LACKING = Row(400, "unsupported_by_model")
_NO_ROOM = Row(503, "no_room", pauses=True)
_FAILED = Row(503, "model_failed", pauses=True)
_TOO_LONG = Row(413, "request_too_large")
_CROWDED = Row(503, "too_many_connections", pauses=True)
_PARAM = re.compile(r"\b[a-z]+_[a-z_]+\b")
# How msgspec says that a struct has no such member.
UNKNOWN_MEMBER = "Object contains unknown field"
# Members that the door makes itself: no client can have sent a wrong value. The oldest daemons give no reason.
_MADE_HERE = frozenset({"cache_salt", "tenant", "person", "supersede_scope"})
_UNKNOWN = "unknown model"  # the daemon's `why` of a name that no model has
_CROWDS = ("max_connections", "max_connections_per_uid", "max_users", "max_in_flight", "max_client_bytes")


# What each status of an error says.
STATUSES = {
    400: "a member is wrong, or the model or the daemon does not offer it",
    401: "the key is missing or unknown",
    403: "the host, the origin or the user is not allowed",
    404: "there is no such model or endpoint",
    405: "the endpoint has another method",
    408: "the client sent or read too slowly",
    409: "a newer request of the key, or an administrator, ended it",
    413: "the body is too long",
    415: "the content type is not application/json, or the body is compressed",
    431: "the head of the request is too long",
    429: "too many requests, tokens of a day, wrong keys, calls or streams: wait `retry-after-ms`, if it is there",
    500: "a defect: its place is in the log",
    502: "the engine was lost, or the door cannot read what the daemon sent",
    503: "no daemon answers, it drains, its version differs, or there is no room: retry later",
    504: "the deadline of the request passed",
}


def bad(param: str, why: str) -> Problem:
    """Return the error of one member of a request."""
    return Problem(400, "invalid_value", f"{param}: {why}", param=param)


def defect() -> Problem:
    """Return the error of an answer that the door itself failed to make."""
    return Problem(_DEFECT.status, _DEFECT.code, "the door failed; its log has the place: a defect")


def problem_of(error: CardError, members: Mapping[str, str]) -> Problem:
    """Return a daemon's error as an HTTP answer; `members` names params of card as the dialect does."""
    if isinstance(error, DaemonUnavailable):
        # The paths that were tried are nothing for clients, who may be other people: `carctl doctor` has them.
        why = "no daemon answers" if error.tried else str(error)
        message = f"{why}; start the daemon with `carctl service install` or `card`"
        return Problem(503, "daemon_unavailable", message, retry_after_ms=RETRY_AFTER_MS)
    if not isinstance(error, RequestError):
        return Problem(502, "protocol_error", str(error))
    if isinstance(error, InvalidParams) and _is_of_another_version(error):
        return _versions_differ(f"refuses `{error.param}`, which this door sends")
    if error.reason == "method_not_found":
        return _versions_differ("lacks a method that this door calls")
    row = _row(error)
    pause_ms = (error.retry_after_ms or RETRY_AFTER_MS) if row.pauses else None
    param = None
    if isinstance(error, InvalidParams):
        param = members.get(error.param, error.param)
    elif isinstance(error, ContextExceeded) and "param" in error.data:
        param = members.get(error.data["param"], error.data["param"])
    message = _message(error, param, members)
    # Clients that retry by themselves would sleep to the end of the day without a word.
    retry = False if "ends_at" in error.data else row.retry
    return Problem(row.status, row.code, message, param=param, retry_after_ms=pause_ms, retry=retry)


def _is_of_another_version(error: InvalidParams) -> bool:
    """Return whether the daemon lacks a member of the protocol: the door sends only members that it knows."""
    return error.param in _MADE_HERE or str(error.data.get("why", "")).startswith(UNKNOWN_MEMBER)


def _versions_differ(how: str) -> Problem:
    message = f"the daemon {how}: their versions differ; "
    message += "install one version of card for both and restart both"
    return Problem(503, "versions_differ", message, retry=False)


def _row(error: RequestError) -> Row:
    data = error.data
    if error.reason == "model_unavailable":
        if "lacks" in data:
            return _LACKING
        if "needed_bytes" in data:
            return _NO_ROOM
        return ROWS["model_unavailable"] if data.get("why", _UNKNOWN) == _UNKNOWN else _FAILED
    if error.reason == "limit":
        if data.get("limit") == "max_frame_bytes":
            return _TOO_LONG
        return _CROWDED if data.get("limit") in _CROWDS else ROWS["limit"]
    return ROWS.get(error.reason, _DEFECT)


def _message(error: RequestError, param: str | None, members: Mapping[str, str]) -> str:
    data = error.data
    if isinstance(error, ContextExceeded):
        return f"{_context(data)} ({param})" if param else _context(data)
    if isinstance(error, InvalidParams):
        place = f" at {data['place']}" if data.get("place") else ""  # the whole schema's place is empty
        why = data.get("why", "the value is missing, ill-typed or out of range")
        # Names that are no words of a sentence, as `json_schema`.
        why = _PARAM.sub(lambda found: members.get(found[0], found[0]), why)
        return f"{param}: {why}{place}"
    if data.get("why") == _UNKNOWN:
        return "there is no model of this name: GET /v1/models lists them"
    if "lacks" in data:
        return f"the model lacks what this request needs: {data['lacks']}" + _because(data)
    if "limit" in data:
        return f"{error.message}: {data['limit']} is {data.get('value')}" + _until(data)
    return error.message + _because(data)


def _until(data: Mapping[str, Any]) -> str:
    """Return the time at which a limit of a day ends."""
    ends_at = data.get("ends_at")
    return "" if ends_at is None else f" until {datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d %H:%M} UTC"


def _because(data: Mapping[str, Any]) -> str:
    return f" ({data['why']})" if "why" in data else ""


def _context(data: Mapping[str, Any]) -> str:
    """Return OpenAI's own sentence, which agents match to compact their conversation."""
    limit, prompt = data.get("context_tokens"), data.get("prompt_tokens")
    resulted = "are longer" if prompt is None else f"resulted in {prompt} tokens"
    return (
        f"This model's maximum context length is {limit} tokens. However, your messages {resulted}. "
        f"Please reduce the length of the messages.{_because(data)}"
    )
