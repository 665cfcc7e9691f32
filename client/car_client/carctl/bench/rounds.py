"""The rounds of `carctl bench`: one measurement or, beside another server, three of each in turn."""

from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from car_client.carctl.bench.figures import Figures, Spread
from car_client.carctl.bench.generator import generate
from car_client.carctl.bench.progress import progress
from car_client.carctl.bench.workload import WORDS, Lengths, Workload
from car_client.client import Client

# Odd, so that a median turn exists.
_TURNS = 3
_REQUESTS_EACH = 4
_ARRIVALS = 20
# The tokens of prompts and of answers: a question and a paragraph.
_USUAL = Lengths(64, 64)


class ComparedServer(Struct, frozen=True):
    """Another server at its URL, and the model's name there."""

    address: str
    model: str | None


class Ratios(Struct, frozen=True):
    """The daemon's figures divided by the other's; for times a smaller ratio is better."""

    tokens_per_s: float
    ttft_ms: Spread
    itl_ms: Spread


class LoadRound(Struct, frozen=True, omit_defaults=True):
    """The figures for one number of requests at once, or for one rate."""

    at_once: int | None
    rate: float | None
    card: Figures
    other: Figures | None = None
    ratios: Ratios | None = None


def workloads(options: Namespace, capacity: int, tokens_per_word: float) -> list[Workload]:
    """Return a workload for each rate or, without rates, each number of requests at once."""
    sent: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "client": "carctl bench"}
    sent |= {name: value for name in ("model", "priority") if (value := getattr(options, name)) is not None}
    common: dict[str, Any] = {
        "prompts": options.prompt_tokens or _USUAL,
        "answers": options.max_tokens or _USUAL,
        "tokens_per_word": tokens_per_word,
        "options": sent,
        "seed": options.seed,
    }
    if options.rate:
        return [Workload(rate=rate, requests=options.requests or _ARRIVALS, **common) for rate in options.rate]
    return [
        Workload(clients=clients, requests=options.requests or _REQUESTS_EACH * clients, **common)
        for clients in options.at_once or doubling(capacity)
    ]


def doubling(capacity: int) -> list[int]:
    """Return the powers of two below the capacity, and the capacity."""
    return [*(2**power for power in range((capacity - 1).bit_length())), capacity]


def tokens_per_word(client: Client, model: str | None) -> float:
    """Return the mean length of the prompts' words in the model's tokens."""
    return max(1, len(client.tokenize(" ".join(WORDS), model=model))) / len(WORDS)


async def rounds(card: str, peer: ComparedServer | None, plan: Sequence[Workload]) -> AsyncIterator[LoadRound]:
    """Yield a round for each workload; `card` is the daemon's socket."""
    for workload in plan:
        at_once = None if workload.rate else workload.clients
        name = f"{workload.rate:g} a second" if workload.rate else f"{at_once} at once"
        if peer is None:
            yield LoadRound(at_once, workload.rate, await _measured(card, workload, name))
            continue
        # The model's name is another one there.
        others = {name: value for name, value in workload.options.items() if name != "model"}
        theirs = replace(workload, options=others if peer.model is None else {**others, "model": peer.model})
        ours_found, theirs_found = [], []
        for turn in range(_TURNS):
            label = f"{name}, turn {turn + 1} of {_TURNS}"
            ours_found.append(await _measured(card, workload, label))
            theirs_found.append(await _measured(peer.address, theirs, label))
        medians = median_turn(ours_found), median_turn(theirs_found)
        yield LoadRound(at_once, workload.rate, *medians, ratios(ours_found, theirs_found))


async def _measured(address: str, workload: Workload, name: str) -> Figures:
    with progress(name, workload.requests) as tick:
        return await generate(address, workload, tick)


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
