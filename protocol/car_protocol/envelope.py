"""The JSON-RPC 2.0 envelope: frames into calls, answers into frames."""

import re
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from car_protocol.errors import ErrorObject, RpcError
from car_protocol.limits import MAX_BATCH, MAX_ID_BYTES, MAX_ID_INTEGER, MAX_MEMBERS

Id = str | int
_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")
_ABSENT = Raw(b"")
# The longest text of an id: each of its bytes may be written as `\\u0041`.
_MAX_ID_TEXT = 6 * MAX_ID_BYTES + 2


class Call(Struct, frozen=True):
    """One request or, if `id` is None, one notification; `params` is JSON text or empty."""

    method: str
    id: Id | None
    params: bytes


class Batch(Struct, frozen=True):
    """The entries of a batch in order: calls, and errors for entries that are not calls."""

    entries: list[Call | RpcError]


class Result(Struct, frozen=True):
    """A response that carries a result."""

    id: Id
    result: Any
    jsonrpc: Literal["2.0"] = "2.0"


class Failure(Struct, frozen=True):
    """A response that carries an error; `id` is None if the request's own could not be read."""

    id: Id | None
    error: ErrorObject
    jsonrpc: Literal["2.0"] = "2.0"


class Notification(Struct, frozen=True):
    """A message that is never answered."""

    method: str
    params: Any
    jsonrpc: Literal["2.0"] = "2.0"


class Request(Struct, frozen=True, omit_defaults=True):
    """A call as a client sends it."""

    jsonrpc: Literal["2.0"]
    method: str
    id: Id | None = None
    params: Any = None


class Incoming(Struct, frozen=True):
    """Any message of a daemon, as a client decodes it; `result` and `params` stay JSON text until read."""

    id: Id | None = None
    method: str | None = None
    result: Raw = _ABSENT
    params: Raw = _ABSENT
    error: ErrorObject | None = None


class _Envelope(Struct, frozen=True):
    jsonrpc: Literal["2.0"]
    method: str
    id: Raw = _ABSENT
    params: Raw = _ABSENT


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_entries = msgspec.json.Decoder(list[Raw]).decode
_decode_incoming = msgspec.json.Decoder(Incoming).decode
_encode = msgspec.json.Encoder().encode
# Errors of msgspec for bytes that are not a JSON text: invalid UTF-8 and deep nesting do not raise DecodeError.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_frame(frame: bytes) -> Call | Batch:
    """Decode a client's frame; raises RpcError (`parse_error`, `invalid_request`) for the whole frame."""
    if not frame.isascii():
        _require_utf8(frame)
    if frame.lstrip()[:1] == b"[":
        return _decode_batch(frame)
    return _decode_call(frame)


def decode_incoming(frame: bytes) -> Incoming:
    """Decode a daemon's frame; raises msgspec.DecodeError."""
    return _decode_incoming(frame)


def encode_message(message: Result | Failure | Notification | Request) -> bytes:
    """Return the message as one frame with its newline."""
    return _encode(message) + b"\n"


def join_batch(answers: list[bytes]) -> bytes:
    """Return a batch's answers, a frame each, as one frame with its newline."""
    return b"[" + b",".join(answer[:-1] for answer in answers) + b"]\n"


def require_few_members(text: bytes) -> None:
    """Raise `limit` for more objects, arrays and texts than MAX_MEMBERS: to decode millions would take seconds.

    Names of members are texts, too. Raises `parse_error` if so many are not a JSON text.
    """
    if len(text) <= MAX_MEMBERS or _opened(text) + text.count(b'"') // 2 <= MAX_MEMBERS:
        return
    try:
        msgspec.json.decode(text, type=Raw)
    except NOT_JSON as error:
        raise RpcError("parse_error") from error
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = plain.count(b'"') // 2
    # With few texts there are few parts, and every second one is outside of the texts.
    if texts > MAX_MEMBERS or texts + _opened(b"".join(plain.split(b'"')[::2])) > MAX_MEMBERS:
        raise RpcError("limit", limit="max_members", value=MAX_MEMBERS)


def _opened(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _require_utf8(frame: bytes) -> None:
    """Raise `parse_error` for bytes that are not UTF-8: msgspec does not check the bytes of `params`."""
    try:
        frame.decode()
    except UnicodeDecodeError as error:
        raise RpcError("parse_error") from error


def _decode_call(frame: bytes) -> Call:
    try:
        envelope = _decode_envelope(frame)
    except NOT_JSON as error:
        raise _undecodable(frame) from error
    call_id = _decode_id(bytes(envelope.id)) if envelope.id != _ABSENT else None
    return Call(envelope.method, call_id, bytes(envelope.params))


def _decode_batch(frame: bytes) -> Batch:
    _require_json(frame)
    entries = _decode_entries(frame)
    if not 1 <= len(entries) <= MAX_BATCH:
        raise RpcError("invalid_request", max_batch=MAX_BATCH)
    return Batch([_batch_entry(bytes(entry)) for entry in entries])


def _batch_entry(entry: bytes) -> Call | RpcError:
    try:
        return _decode_call(entry)
    except RpcError as error:
        return error


def _decode_id(text: bytes) -> Id:
    if len(text) > _MAX_ID_TEXT:
        raise RpcError("invalid_request")
    try:
        value = msgspec.json.decode(text)
    except msgspec.ValidationError as error:
        raise RpcError("invalid_request") from error
    except NOT_JSON as error:
        raise RpcError("parse_error") from error
    if isinstance(value, str) and len(value.encode()) <= MAX_ID_BYTES:
        return value
    if type(value) is int and abs(value) <= MAX_ID_INTEGER and _INTEGER.fullmatch(text):
        return value
    raise RpcError("invalid_request")


def _undecodable(frame: bytes) -> RpcError:
    try:
        _require_json(frame)
    except RpcError as error:
        return error
    return RpcError("invalid_request")


def _require_json(frame: bytes) -> None:
    require_few_members(frame)
    try:
        _parse(frame)
    except NOT_JSON as error:
        raise RpcError("parse_error") from error


def _parse(frame: bytes) -> None:
    try:
        msgspec.json.decode(frame)
    except msgspec.ValidationError:
        # A number out of range: still a JSON text if its syntax is valid.
        msgspec.json.decode(frame, type=Raw)
