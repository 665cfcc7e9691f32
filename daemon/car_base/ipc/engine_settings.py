"""The settings of an engine: members that a model's table, a model's settings and the frame of its load share."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from car_base.ipc.types import KvType, Sandbox, Tags, ToolStyle
from car_protocol.capacity import Policy
from car_protocol.meta import note

MAX_THREADS = 1024
# The defaults.
MARGIN_BYTES = 2 * 1024 * 1024 * 1024
MAX_ITL_MS = 150
SAVED_BYTES = 512 * 1024 * 1024
STEP_TARGET_MS = 120


class EngineKeys(Struct, frozen=True, kw_only=True):
    """The keys of a model's table that its engine gets as they are written; None leaves the choice to the engine."""

    context_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        note(
            "tokens of a sequence, rounded up to a multiple of 256; what memory holds of the trained length if absent"
        ),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None, note("cores to compute with; the physical cores if absent")
    ] = None
    kv_type: Annotated[
        KvType, note("`q8_0` halves and `q4_0` quarters the memory of a context, for models with flash attention")
    ] = "f16"
    tool_style: Annotated[
        ToolStyle | None, note("how the model writes tool calls, if its template does not show it")
    ] = None
    thinking_tags: Annotated[
        Tags | None, note("the two texts around its thoughts, if its template does not show them")
    ] = None
    speculative: Annotated[
        bool, note("guess tokens that followed the last tokens before, if the costs promise a gain")
    ] = True


class EngineSettings(EngineKeys, frozen=True, kw_only=True):
    """The settings of a model that its engine gets as they are.

    `margin_bytes` bounds the memory that the engine allocates after the load, None for no bound.
    """

    sequences: int | None = None
    policy: Policy = "measured"
    max_itl_ms: int = MAX_ITL_MS
    reserve_bytes: int = 0
    saved_bytes: int = SAVED_BYTES
    step_target_ms: int = STEP_TARGET_MS
    sandbox: Sandbox = "strict"
    margin_bytes: int | None = MARGIN_BYTES


def members_of(kind: type[Struct], given: Struct) -> dict[str, Any]:
    """Return the members of a Struct that it has from this kind."""
    return {name: getattr(given, name) for name in kind.__struct_fields__}
