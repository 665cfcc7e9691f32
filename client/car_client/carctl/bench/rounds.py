"""The rounds of `carctl bench`: one measurement or, beside another server, three of each in turn."""

from collections.abc import AsyncIterator, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from car_client.carctl.bench.progress import progress
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.figures import Figures, Spread
from car_client.carctl.load.generator import generate
from car_client.carctl.load.workload import Workload

# Odd, so that a median turn exists.
_TURNS = 3


class Peer(Struct, frozen=True):
    """Another server, and the model's name there."""

    endpoint: Endpoint
    model: str | None


class Ratios(Struct, frozen=True):
    """The daemon's figures divided by the other's; for times a smaller ratio is better."""

    tokens_per_s: float
    ttft_ms: Spread
    itl_ms: Spread


class Round(Struct, frozen=True, omit_defaults=True):
    """The figures for one number of requests at once, or for one rate."""

    at_once: int | None
    rate: float | None
    card: Figures
    other: Figures | None = None
    ratios: Ratios | None = None


async def rounds(card: Endpoint, peer: Peer | None, plan: Sequence[Workload]) -> AsyncIterator[Round]:
    """Yield a round for each workload."""
    for workload in plan:
        at_once = None if workload.rate else workload.clients
        name = f"{workload.rate:g} a second" if workload.rate else f"{at_once} at once"
        if peer is None:
            yield Round(at_once, workload.rate, await _measured(card, workload, name))
            continue
        # The model's name is another one there.
        others = {name: value for name, value in workload.options.items() if name != "model"}
        theirs = replace(workload, options=others if peer.model is None else {**others, "model": peer.model})
        ours_found, theirs_found = [], []
        for turn in range(_TURNS):
            label = f"{name}, turn {turn + 1} of {_TURNS}"
            ours_found.append(await _measured(card, workload, label))
            theirs_found.append(await _measured(peer.endpoint, theirs, label))
        medians = median_turn(ours_found), median_turn(theirs_found)
        yield Round(at_once, workload.rate, *medians, ratios(ours_found, theirs_found))


async def _measured(endpoint: Endpoint, workload: Workload, name: str) -> Figures:
    with progress(name, workload.requests) as tick:
        return await generate(endpoint, workload, tick)


def median_turn(turns: Sequence[Figures]) -> Figures:
    """Return the turn of median throughput."""
    return sorted(turns, key=lambda figures: figures.tokens_per_s)[len(turns) // 2]


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Ratios:
    """Return the medians of the ratios of neighbouring turns."""
    pairs = list(zip(ours, theirs, strict=True))
    return Ratios(
        _quotient([(one.tokens_per_s, other.tokens_per_s) for one, other in pairs]),
        _ratio([(one.ttft_ms, other.ttft_ms) for one, other in pairs]),
        _ratio([(one.itl_ms, other.itl_ms) for one, other in pairs]),
    )


def _ratio(pairs: Sequence[tuple[Spread, Spread]]) -> Spread:
    def of(name: str) -> float:
        return _quotient([(getattr(one, name), getattr(other, name)) for one, other in pairs])

    return Spread(*map(of, Spread.__struct_fields__))


def _quotient(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the ratios; a ratio to 0 counts as 0."""
    return median(one / other if other else 0.0 for one, other in pairs)
