"""Members that the params of every method may have."""

from typing import Annotated

from msgspec import Raw, Struct, field

from car_protocol.notes import note

# The member of `_meta` that the daemon reads.
TRACEPARENT = "traceparent"


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named members; an unknown one is an error; of `_meta` only `traceparent` is read."""

    meta: Annotated[dict[str, Raw], note("the caller's own; only `traceparent` is read")] = field(
        name="_meta", default_factory=dict
    )
