"""W3C trace context: the trace of a request, from `_meta.traceparent`."""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from car_protocol.meta import TRACEPARENT

# Version, trace id, parent id, flags; only versions after the first may go on, behind another dash.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII | re.DOTALL)
_FIRST_VERSION = "00"
_INVALID_VERSION = "ff"


class Trace(Struct, frozen=True):
    """The ids of a trace and of the caller's place in it, in hexadecimal digits."""

    trace_id: str
    parent_id: str


def trace_of(meta: Mapping[str, Raw]) -> Trace | None:
    """Return the trace in `_meta`, None where it has no valid one."""
    if TRACEPARENT not in meta:
        return None
    try:
        text = msgspec.json.decode(meta[TRACEPARENT], type=str)
    except msgspec.DecodeError:
        return None
    return read_traceparent(text)


def read_traceparent(text: str) -> Trace | None:
    """Return the ids of a `traceparent`, None where it is invalid; versions to come are read as the first one."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, parent_id, more = found.groups()
    if version == _INVALID_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    if not (trace_id.strip("0") and parent_id.strip("0")):
        return None
    return Trace(trace_id, parent_id)
