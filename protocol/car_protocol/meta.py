"""What every method's params may hold beside its own members."""

from msgspec import Raw, Struct, field


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named members; an unknown one is an error; of `_meta` only `traceparent` is read."""

    meta: dict[str, Raw] = field(name="_meta", default_factory=dict)
