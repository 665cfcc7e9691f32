"""The rounds of `carctl bench`: each measured once or, beside another server, in turn."""

from collections.abc import AsyncIterator, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from car_client.carctl.bench_progress import progress
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.figures import Figures, Spread
from car_client.carctl.load.generator import generate
from car_client.carctl.load.workload import Workload

# Odd, so that one of the turns is the one in the middle.
_TURNS = 3


class Peer(Struct, frozen=True):
    """Another server, and what it calls the model."""

    endpoint: Endpoint
    model: str | None


class Ratios(Struct, frozen=True):
    """The daemon's figures by the other's: throughput, and times of which less is better."""

    tokens_per_s: float
    ttft_ms: Spread
    itl_ms: Spread


class Round(Struct, frozen=True, omit_defaults=True):
    """What one number of requests at once, or one rate, gave."""

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
        theirs = replace(workload, options=_options(workload, peer))
        ours_found, theirs_found = [], []
        for turn in range(_TURNS):
            label = f"{name}, turn {turn + 1} of {_TURNS}"
            ours_found.append(await _measured(card, workload, label))
            theirs_found.append(await _measured(peer.endpoint, theirs, label))
        yield _compared(at_once, workload.rate, ours_found, theirs_found)


def _options(workload: Workload, peer: Peer) -> dict[str, object]:
    others = {name: value for name, value in workload.options.items() if name != "model"}
    return others if peer.model is None else {**others, "model": peer.model}


async def _measured(endpoint: Endpoint, workload: Workload, name: str) -> Figures:
    with progress(name, workload.requests) as tick:
        return await generate(endpoint, workload, tick)


def _compared(at_once: int | None, rate: float | None, ours: list[Figures], theirs: list[Figures]) -> Round:
    """Return the turns in the middle, and the medians of the ratios turn by turn."""
    return Round(at_once, rate, middle(ours), middle(theirs), ratios(ours, theirs))


def middle(turns: Sequence[Figures]) -> Figures:
    """Return the turn whose throughput is in the middle."""
    return sorted(turns, key=lambda figures: figures.tokens_per_s)[len(turns) // 2]


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Ratios:
    """Return the medians of the ratios of turns that were neighbours."""
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
    """Return the median of the ratios; 0 where the other one measured nothing."""
    return median(one / other if other else 0.0 for one, other in pairs)
