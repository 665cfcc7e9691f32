"""Throughput and time to the first token beside llama-server of the same build, and card's own part of a step."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.comparison import Bystanders, Case, Compared, Measure, Target, compare
from benchmarks.generator import generate
from benchmarks.targets.llama_server import LlamaServer
from car_client import AsyncClient
from car_client.carctl.bench.workload import Lengths, Workload
from tools.gpu.served import Served, engine
from tools.gpu.verdicts import Speed, Verdict, own_part

CONTEXT_TOKENS = 1024
_OWN_STREAMS = 8
_REQUESTS = 64
_SHORT, _ANSWERS = Lengths(16, 16), Lengths(60, 60)
_WARM_UP_S = 1.0
# An engine reports its counters with a heartbeat, each second.
_HEARTBEATS_S = 2.1
# By itself it would choose the number by what is free, beside card on the same device.
_ITS_LAYERS = {"gpu": "all", "cpu": "0"}
_GREEDY = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}


class CardOn:
    """card on a device, as a target of a comparison."""

    name = "card"

    def __init__(self, served: Served) -> None:
        self._served = served

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run a daemon that declares as much as the case has sequences."""
        with self._served.daemon(sequences=case.sequences, context_tokens=case.context_tokens) as (socket, _):
            yield partial(generate, str(socket))


class LlamaServerOn:
    """llama-server with all layers on a device or none, as card has them, as a target of a comparison.

    Its copies of finished prompts in the host's memory are off: no request of the comparison may use them, and it would
    copy cells from the device for each.
    """

    name = "llama-server"

    def __init__(self, served: Served, path: Path) -> None:
        self._served = served
        self._server = LlamaServer(path, "split")

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run it with as many slots as the case has sequences."""
        options = ("--n-gpu-layers", _ITS_LAYERS[self._served.device], "--cache-ram", "0")
        with (
            self._served.visible(),
            self._server.serving(case.model, case.sequences, case.context_tokens, *options) as address,
        ):
            yield partial(generate, address)


def case_of(name: str, model: Path, streams: int, seconds: float) -> Case:
    """Return a closed loop of streams with short prompts and answers of 60 tokens; `seconds` are measured."""
    workload = Workload(
        clients=streams,
        seconds=seconds + _WARM_UP_S,
        warm_up=_WARM_UP_S,
        prompts=_SHORT,
        answers=_ANSWERS,
        options=_GREEDY,
    )
    return Case(name=name, model=str(model), sequences=streams, context_tokens=CONTEXT_TOKENS, workload=workload)


def beside_llama_server(served: Served, server: Path, case: Case, turns: int) -> Speed:
    """Measure both in turn; other programs are not waited for."""
    other = LlamaServerOn(served, server)
    targets: list[Target] = [CardOn(served), other]
    found = compare(case, targets, turns, Bystanders(quiet=1.0, patience_s=0.0))
    return Speed(
        case.name,
        case.workload.clients,
        found.tokens_per_s("card"),
        found.ratio("card", other.name),
        _first_token_ms(found, "card"),
        found.tokens_per_s(other.name),
        _first_token_ms(found, other.name),
    )


def _first_token_ms(found: Compared, target: str) -> float | None:
    """Return the median of a target's times to the first token; None if a turn has none."""
    if not all(run.requests for run in found.runs[target]):
        return None
    return found.median_of(target, lambda run: run.ttft_ms.p50)


def own_part_of_a_step(served: Served, name: str) -> Verdict:
    """Return the microseconds that card itself takes for a step of eight streams."""
    workload = Workload(clients=_OWN_STREAMS, requests=_REQUESTS, prompts=_SHORT, answers=_ANSWERS, options=_GREEDY)
    with served.daemon(sequences=_OWN_STREAMS, context_tokens=CONTEXT_TOKENS) as (socket, _):
        before = asyncio.run(_spent(socket))
        generate(str(socket), workload)
        after = asyncio.run(_spent(socket))
    return own_part(name, before, after, _REQUESTS * _ANSWERS.high, _OWN_STREAMS)


async def _spent(socket: Path) -> dict[str, float]:
    """Return the seconds of the engine's phases, as of its last heartbeat."""
    async with AsyncClient(socket) as client:
        await asyncio.sleep(_HEARTBEATS_S)
        return (await engine(client)).seconds
