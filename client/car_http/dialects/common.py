"""The parts that dialects share: reading bodies, labels and sessions, deadlines, card's own members."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from car_client.door.keys import Key
from car_http.dialects.bodies import Own, Part
from car_http.dialects.vendor_tools import vendor_problem
from car_http.guard import RequestHead
from car_http.problems import UNKNOWN_MEMBER, Problem, bad
from car_protocol.envelope import NOT_JSON, require_few_members
from car_protocol.errors import RpcError
from car_protocol.infer import MAX_SESSION_BYTES
from car_protocol.limits import MAX_MEMBERS
from car_protocol.meta import MAX_LABEL_BYTES, TRACEPARENT
from car_protocol.params import in_words, message_of

T = TypeVar("T")
Names = Mapping[str, Sequence[str]]  # by the daemon's params, the members of a dialect that they come from
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_NAMED = re.compile(r"`([^`]*)`")
_PRODUCT = re.compile(r"[^\s/();,]+")
_MOST_DEADLINE_S = 86_400.0
# Seconds that official clients wait for an answer, which they send along.
_PATIENCE_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
# The members of card's own in `X-Card-*` headers that are not texts.
_OWN_TRUTHS = ("wait", "queue", "lenient", "reproducible")
_OWN_NUMBERS = ("timeout_ms", "queue_timeout_ms", "reasoning_tokens")
_OWN = "card"
OWN_HEADERS = {name: "X-Card-" + name.replace("_", "-").title() for name in Own.__struct_fields__}
_AUDIO_FORMATS = ("wav", "mp3")
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.ASCII | re.IGNORECASE)


class Caller(Struct, frozen=True):
    """The request's head and the key that it carried."""

    head: RequestHead
    key: Key | None = None

    def header(self, name: str) -> str | None:
        """Return a header, None if it is absent or empty."""
        return self.head.headers.get(name.lower()) or None


def decode(body: bytes, kind: type[T]) -> T:
    """Return a body as a struct; raises Problem with the member at fault, and for more values than a frame may have."""
    _require_few_members(body)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _fault(message_of(error), kind) from error
    except RecursionError as error:
        raise Problem(400, "invalid_json", "the body nests too deeply: send its inner part as a text") from error
    except NOT_JSON as error:
        raise _not_json() from error


def of_texts(members: Mapping[str, str], kind: type[T]) -> T:
    """Return the texts of a form as a struct; raises Problem with the member at fault."""
    try:
        return msgspec.convert(members, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _fault(message_of(error), kind) from error


def converted(value: Any, kind: Any, place: str) -> Any:
    """Return a value of a body as `kind`; raises Problem with the path of the member at fault behind `place`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fault = _fault(message_of(error), kind)
        within = fault.param or ""
        dot = "." if within and not within.startswith("[") else ""
        message = f"{place}{dot}{fault.message}" if within else f"{place}: {fault.message}"
        raise Problem(400, fault.code, message, param=f"{place}{dot}{within}") from error


def _require_few_members(body: bytes) -> None:
    """Refuse what the daemon would refuse, before it is decoded, because other requests wait meanwhile."""
    try:
        require_few_members(body)
    except RpcError as error:
        if error.reason != "limit":
            raise _not_json() from error
        most = f"more than {MAX_MEMBERS:,} objects, arrays and texts"
        raise Problem(400, "limit", f"the body has {most}: send smaller schemas and fewer tools") from error


def _not_json() -> Problem:
    return Problem(400, "invalid_json", "the body is not a JSON text")


def _fault(message: str, kind: type) -> Problem:
    found = _PATH.search(message)
    why = in_words(_PATH.sub("", message), kind, found[1] if found else "")
    named = _NAMED.search(why) if "required field" in why or UNKNOWN_MEMBER in why else None
    param = ".".join(filter(None, (found[1] if found else "", named[1] if named else ""))) or None
    if UNKNOWN_MEMBER in why:
        why = "there is no such member: GET /openapi.json lists them"
    return Problem(400, "invalid_value", f"{param}: {why}" if param else why, param=param)


def packed(members: dict[str, Any]) -> dict[str, Any]:
    """Return members whose lists and objects are JSON texts: as values they would take up to 15 times the memory.

    They are kept until the answer ends, and many requests may be in flight. Raises Problem if one nests too deeply.
    """
    return {name: _packed(name, value) for name, value in members.items()}


def _packed(name: str, value: Any) -> Any:
    try:
        return Raw(msgspec.json.encode(value)) if isinstance(value, dict | list | Struct) else value
    except RecursionError as error:
        raise bad(name, "nests too deeply: send its inner part as a text") from error


def refuse(request: Struct, reasons: Mapping[str, str]) -> None:
    """Raise Problem for a member that would change the answer and cannot be served."""
    for name, why in reasons.items():
        if getattr(request, name) not in (None, [], "", False):
            raise bad(name, why)


def given(**members: Any) -> dict[str, Any]:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}


def same_named(request: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the members that card names alike, if they have a value."""
    return given(**{name: getattr(request, name) for name in names})


def top_k_params(top_k: int | None) -> dict[str, Any]:
    """Return how many of the likeliest tokens count; 0 means all here, and -1 too on other servers."""
    return given(top_k=None if top_k is None else max(top_k, 0))


def refuse_call(choice: Any, left_out: Sequence[str]) -> None:
    """Raise Problem for a choice that requires a call, if the request has no tool left."""
    if choice not in (None, "auto", "none"):
        if left_out:
            raise vendor_problem(left_out)
        raise bad("tool_choice", "there are no `tools` to choose from: send them, or leave the choice out")


def called_arguments(text: str | None) -> str:
    """Return the arguments of a call as an object of JSON: none are an empty one.

    Calls that a limit cut, and other calls that are not an object, stand as a text in one.
    """
    if text is None or not text.strip():
        return "{}"
    # Its values are not decoded: they are a text of the body, whose bound does not count them.
    return text if is_object(text) else msgspec.json.encode(_in_an_object(text)).decode()


def arguments_data(text: str) -> dict[str, Any]:
    """Return the arguments of a call that a model wrote as data, in the same form."""
    try:
        return msgspec.json.decode(text if text.strip() else "{}", type=dict[str, Any])
    except NOT_JSON:
        return _in_an_object(text)


def is_object(text: str) -> bool:
    """Return whether a text is an object of JSON; its values are not decoded."""
    try:
        msgspec.json.decode(text, type=Raw)
    except NOT_JSON:
        return False
    return text.lstrip().startswith("{")


def _in_an_object(text: str) -> dict[str, Any]:
    return {"arguments": text}


def caller_params(caller: Caller, *, user: str | None, session: str | None, stream: bool) -> dict[str, Any]:
    """Return tenant, label, session, cache salt, deadline and trace of a request."""
    params = given(session=_session(caller, session), cache_salt=_salt(caller))
    if patience_ms := _patience_ms(caller):
        params["queue_timeout_ms" if stream else "timeout_ms"] = patience_ms
    return params | origin_params(caller, user)


def origin_params(caller: Caller, user: str | None = None) -> dict[str, Any]:
    """Return the members that every request has: label, trace, its key's person, else the key's name as its tenant."""
    key = caller.key
    params = given(client=_label(caller, user))
    if key is not None:
        params |= given(person=key.person) or given(tenant=key.name)
    if trace := caller.header(TRACEPARENT):
        params["_meta"] = {TRACEPARENT: trace}
    return params


def own_params(caller: Caller, body: Own | None) -> dict[str, Any]:
    """Return the members of card's own: of the headers `X-Card-*`, and of `card` in the body, which counts first."""
    by_header = {name: caller.header(header) for name, header in OWN_HEADERS.items()}
    params = {name: _own_value(name, text) for name, text in by_header.items() if text is not None}
    if body is not None:
        params |= same_named(body, Own.__struct_fields__)
    # A client's requests come on connections of their own, and reach the daemon on any of the door's.
    return params | {"supersede_scope": "program"} if "supersede" in params else params


def as_sent(request: Struct, names: Names, caller: Caller) -> dict[str, str]:
    """Return by the daemon's params the members of a request that they come from, for errors.

    Of the names of a param the first one counts that the request has; a dot leads into an object.
    """
    found: dict[str, str] = {}
    for param, members in names.items():
        for name in members:
            if _has(request, name):
                found[param] = name
                break
    found |= {name: header for name, header in OWN_HEADERS.items() if caller.header(header) is not None}
    if _has(request, _OWN):
        found |= {name: f"{_OWN}.{name}" for name in OWN_HEADERS if _has(request, f"{_OWN}.{name}")}
    return found


def _has(request: Struct, name: str) -> bool:
    value: Any = request
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None


def image_data(url: str, param: str) -> str:
    """Return the base64 of a data URL; raises Problem for other URLs."""
    found = _DATA_URL.match(url)
    if found is None:
        raise bad(param, "send the image as a data URL (data:image/png;base64,...): the door fetches nothing")
    return url[found.end() :]


def audio_part(part: Part, param: str) -> dict[str, str]:
    """Return the daemon's part of an OpenAI `input_audio` part; raises Problem for other formats."""
    audio = part.input_audio
    if audio is not None and audio.format in _AUDIO_FORMATS and audio.data is not None:
        return {"type": "audio", "data": audio.data}
    raise bad(param, "give {data: base64 of the file, format: wav or mp3}")


def cut(text: str, most: int) -> str:
    """Return a text of at most so many bytes of UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _label(caller: Caller, user: str | None) -> str | None:
    product = _PRODUCT.match(caller.header("user-agent") or "")
    label = user or (product[0] if product else None)
    return cut(label, MAX_LABEL_BYTES) if label else None


def _session(caller: Caller, session: str | None) -> str | None:
    """Return the session, whose requests prefer one replica; a name that is too long is replaced by its digest."""
    session = session or caller.header("x-openwebui-chat-id")
    if session is None or len(session.encode(errors="replace")) <= MAX_SESSION_BYTES:
        return session
    return _digest(session)


def _salt(caller: Caller) -> str | None:
    """Return the salt within which prompts share caches: of the caller's key and its user of Open WebUI."""
    owners = [caller.key.salt if caller.key else None, caller.header("x-openwebui-user-id")]
    return _digest("\0".join(owner or "" for owner in owners)) if any(owners) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _patience_ms(caller: Caller) -> int | None:
    for name in _PATIENCE_HEADERS:
        text = caller.header(name) or ""
        try:
            seconds = float(text)
        except ValueError:
            continue
        if 0 < seconds < float("inf"):
            return max(1, int(min(seconds, _MOST_DEADLINE_S) * 1000))
    return None


def _own_value(name: str, text: str) -> Any:
    if name in _OWN_TRUTHS:
        if text.lower() not in _TRUTHS:
            raise bad(OWN_HEADERS[name], "give true or false")
        return _TRUTHS[text.lower()]
    if name in _OWN_NUMBERS:
        if not (text.isascii() and text.isdigit()):
            raise bad(OWN_HEADERS[name], "give a whole number, from 0 on")
        return int(text[:10])
    if name == "lora":
        return [{"name": each.strip()} for each in text.split(",")]
    return text
