"""`inference/capacity`: how many requests run at once, and what decided it."""

from typing import Annotated, Literal

from msgspec import Struct

from car_protocol.limits import Limits
from car_protocol.meta import Params, note

Policy = Literal[
    "measured",  # the default: the fewest sequences that reach 90% of the best throughput
    "memory",  # what memory holds, 1 to 8
    "ram_tiers",  # 3, 2 or 1, for 48, 16 or less GB
    "ram_per_8gb",  # one for each 8 GiB, 1 to 8
    "env",  # `CAR_INFERENCE_MAX_CONCURRENT`, of the machine
    "flag",  # `--capacity`, of the machine
    "config",  # `[capacity] sequences` of the machine, or `sequences` of a model
]
Pressure = Literal["none", "some", "critical"]
ModelState = Literal["unloaded", "loading", "ready", "draining", "failed"]


class CapacityParams(Params, frozen=True, kw_only=True):
    """The model; `subscribe` starts or ends `inference/capacity_changed`."""

    model: Annotated[str | None, note("the default model if absent")] = None
    subscribe: Annotated[
        bool | None,
        note(
            "true also sends `inference/capacity_changed` with the same object when `generation` grew, false ends that"
        ),
    ] = None


class Machine(Struct, frozen=True):
    """The limit over all models, None if there is none, and the sequences leased under it."""

    limit: Annotated[int | None, note("null if there is none")]
    in_use: Annotated[int, note("sequences leased under it")]


class Capacity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The capacity object; counts are sequences or requests, `inputs` are the figures that the policy decided by."""

    capacity: Annotated[
        int,
        note(
            "requests of this model that run at once now: declared, lowered by pressure and the machine's limit, never "
            "below 1; 1 while its engine is not ready"
        ),
    ]
    declared: Annotated[int | None, note("the figure that its engine declared; null until it is ready")]
    in_use: Annotated[int, note("sequences leased")]
    available: Annotated[
        int, note("free sequences of the model, which the limit of `machine` may keep from being leased")
    ]
    parked: Annotated[int, note("requests set aside, which hold no sequence")]
    queued: Annotated[int, note("requests of this model that wait, also outside of a full queue")]
    queue_limit: Annotated[int, note("the bound of the queue, over all models")]
    policy: Annotated[Policy | None, note("the rule that decided `declared`")]
    pressure: Annotated[Pressure, note("of memory: the highest of the machine and of the model's GPUs")]
    state: ModelState
    model: str
    context_tokens: Annotated[int | None, note("of one sequence, of replicas the longest; null until one is ready")]
    machine: Annotated[Machine, note("over all models")]
    generation: Annotated[
        int,
        note("grows with every change of state, `declared`, pressure and limits; the counts change without it"),
    ]
    protocol: Annotated[str, note("the version of this contract")]
    version: Annotated[str, note("of the daemon")]
    limits: Annotated[Limits, note("the bounds in force")]
    reason: Annotated[str | None, note("the reason why it failed or found no room")] = None
    inputs: Annotated[
        dict[str, float] | None,
        note(
            "the figures that `policy` decided by: `free_bytes`, `kv_bytes_per_sequence`, `tokens_per_s_N` with N "
            "sequences, and `cores_of_others` if other programs had cores meanwhile, until it is measured again"
        ),
    ] = None


class Offer(Struct, frozen=True):
    """A length of sequences, and how many of it fit at once."""

    sequences: int
    context_tokens: int
