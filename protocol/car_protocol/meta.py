"""Members that many params share: notes at definitions, `_meta` with its trace context, person, tenant and label."""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field


def note(text: str) -> Meta:
    """Return the note of a member, for its annotation."""
    return Meta(description=text)


# Of names and labels.
MAX_LABEL_BYTES = 64

Tenant = Annotated[
    str,
    note(
        f"whom the process sends this for, a name of up to {MAX_LABEL_BYTES} bytes: a share within the process; "
        "requests without a name are of one tenant"
    ),
]

Label = Annotated[
    str | None,
    note(f"a label of up to {MAX_LABEL_BYTES} bytes, for fairness, usage and status; the process if absent"),
]

PERSON_PATTERN = r"\A[A-Za-z0-9_.-]{1,64}\Z"
Person = Annotated[
    Annotated[str, Meta(pattern=PERSON_PATTERN)] | None,
    note(
        "the person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other processes and "
        "unknown persons"
    ),
]


def check_origin(client: str | None, tenant: str) -> None:
    """Raise ValueError for a label or a name that is too long."""
    check_bytes("client", client, MAX_LABEL_BYTES)
    check_bytes("tenant", tenant, MAX_LABEL_BYTES)


def check_bytes(path: str, text: str | None, most: int) -> None:
    """Raise ValueError for a text of more bytes, by its path in the params."""
    if text is not None and (size := len(text.encode())) > most:
        raise ValueError(f"`{path}`: has {size:,} bytes, at most {most} are allowed: shorten it")


# The member of `_meta` that the daemon reads.
TRACEPARENT = "traceparent"


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named members; an unknown one is an error; of `_meta` only `traceparent` is read."""

    meta: Annotated[dict[str, Raw], note("the caller's own; only `traceparent` is read")] = field(
        name="_meta", default_factory=dict
    )
    person: Person = None


# Version, trace id, parent id, flags; only versions after the first may go on, behind another dash.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII | re.DOTALL)
_FIRST_VERSION = "00"
_INVALID_VERSION = "ff"


class Trace(Struct, frozen=True):
    """The ids of a trace and of the caller's place in it, in hexadecimal digits."""

    trace_id: str
    parent_id: str


def trace_of(meta: Mapping[str, Raw]) -> Trace | None:
    """Return the trace in `_meta`, None if it has no valid one."""
    if TRACEPARENT not in meta:
        return None
    try:
        text = msgspec.json.decode(meta[TRACEPARENT], type=str)
    except msgspec.DecodeError:
        return None
    return read_traceparent(text)


def read_traceparent(text: str) -> Trace | None:
    """Return the ids of a `traceparent`, None if it is invalid; versions to come are read as the first one."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, parent_id, more = found.groups()
    if version == _INVALID_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    if not (trace_id.strip("0") and parent_id.strip("0")):
        return None
    return Trace(trace_id, parent_id)
