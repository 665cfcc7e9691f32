"""card beside llama-server in turn: one table, with a verdict on each line.

`LLAMA_SERVER=PATH python -m benchmarks.verdicts [--turns N] [--model KIND] [--only TEXT] [--full]` takes about nine
minutes with the default of two turns; `--full` adds cases. The model is SmolLM2 (`make real-model`). Without
LLAMA_SERVER the lines have card's figures, and verdicts only where the bar is card's own.
"""

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import uvloop
from msgspec.structs import replace

from benchmarks import long_prompt, overhead
from benchmarks.bystanders import Bystanders
from benchmarks.interleaved import Compared, compare
from benchmarks.models import model_file
from benchmarks.record import this_machine, write_record
from benchmarks.table import figure, markdown
from benchmarks.targets.bare_loop import BareLoop
from benchmarks.targets.card import Card, serving
from benchmarks.targets.case import Case
from benchmarks.targets.llama_server import VARIABLE, LlamaServer, found_llama_servers
from car_client import AsyncClient
from car_client.carctl.load.figures import Figures
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.prompts import WORDS
from car_client.carctl.load.workload import Workload

HEADINGS = ("line", "card", "beside it", "ratio or bar", "verdict")
WARM_UP_S, SECONDS = 1.0, 4.0
CONTEXT_TOKENS = 1024
# Whole rounds of eight: a window of seconds would cut the first round of a server that reads all prompts before it
# answers.
HEAVY: dict[str, Any] = {"seconds": None, "warm_up": 0.0, "requests": 16}
SHARED: dict[str, Any] = {"seconds": None, "warm_up": 0.0, "requests": 24}
QUIET, PATIENCE_S = 0.05, 20.0
SHORT, LONG, ANSWERS = Lengths(16, 16), Lengths(400, 400), Lengths(50, 50)
GREEDY = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
SHARES = {"temperature": 0, "ignore_eos": True, "cache_prompt": True}
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 100}
# A word is a token.
TEXTS, TEXT_WORDS = 64, Lengths(85, 115)
TARGETS_MS = (30, 120, 300)
OWN_US = 15.0
MODES = ("split", "unified")


class Line(NamedTuple):
    """A line of the table; `met` is None where nothing was beside card."""

    name: str
    card: str
    beside: str
    bar: str
    met: bool | None

    def row(self) -> list[str]:
        """Return its cells."""
        return [self.name, self.card, self.beside, self.bar, {True: "met", False: "MISSED", None: "-"}[self.met]]


class Load(NamedTuple):
    """A case of clients, and the least ratio of throughput to llama-server and to the bare loop."""

    case: Case
    least: float
    of_bare: float | None = None
    most_gap_ms: float | None = None


def loads(model: str, *, full: bool) -> Iterator[Load]:
    """Yield the cases of streaming clients."""

    plain = Workload(
        seconds=WARM_UP_S + SECONDS, warm_up=WARM_UP_S, prompts=SHORT, answers=Lengths(60, 60), options=GREEDY
    )

    def case(name: str, clients: int, **more: Any) -> Case:
        workload = replace(plain, clients=clients, **more)
        return Case(name=name, model=model, sequences=clients, context_tokens=CONTEXT_TOKENS, workload=workload)

    for clients, of_bare in ((1, 0.96), (8, 0.96), *(((16, 0.97),) if full else ())):
        yield Load(case(f"{clients} clients, answers of 60", clients), 1.0, of_bare)
    for clients in (2, 8, 16) if full else (8, 16):
        yield Load(case(f"{clients} clients, answers of 15-105", clients, answers=Lengths(15, 105)), 1.0)
    yield Load(
        case("8 clients, prompts of 400, answers of 50", 8, prompts=LONG, answers=ANSWERS, **HEAVY),
        0.97,
        most_gap_ms=500.0,
    )
    shared = case(
        "the same, 300 of 400 shared",
        8,
        prompts=Lengths(100, 100),
        answers=ANSWERS,
        shared_prefix=300,
        options=SHARES,
        **SHARED,
    )
    yield Load(shared, 1.0)
    bound = case("8 clients, answers by a schema", 8, answers=ANSWERS, options={**GREEDY, "json_schema": SCHEMA})
    yield Load(bound, 1.0)


def load_lines(load: Load, servers: list[LlamaServer], turns: int, bystanders: Bystanders) -> Iterator[Line]:
    """Measure a case; yield its lines."""
    bare = [BareLoop()] if load.of_bare is not None else []
    found = compare(load.case, [Card(), *bare, *servers], turns, bystanders)
    return judged(load, found, [server.name for server in servers])


def judged(load: Load, found: Compared, servers: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of a case that was measured: beside the better one of the servers."""
    name = load.case.name
    if load.of_bare is not None:
        yield _ratio_line(f"{name}: of the bare loop", found, "bare loop", load.of_bare)
    if servers:
        best = max(servers, key=found.tokens_per_s)
        rate = _ratio_line(f"{name}: tokens/s", found, best, load.least)
        yield rate
        if rate.met is not None:
            yield _no_worse_line(f"{name}: first token p50, ms", found, best, lambda run: run.ttft_ms.p50)
            yield _no_worse_line(f"{name}: between tokens p99, ms", found, best, lambda run: run.itl_ms.p99)
    else:
        yield Line(f"{name}: tokens/s", figure(found.tokens_per_s("card")), "", "", None)
    if load.most_gap_ms is not None:
        gap = found.median_of("card", lambda run: run.itl_ms.p99)
        met = gap <= load.most_gap_ms
        yield Line(
            f"{name}: between tokens p99 by its own bar, ms", figure(gap), "", f"at most {load.most_gap_ms:g}", met
        )


def _ratio_line(name: str, found: Compared, other: str, least: float) -> Line:
    if not all(run.tokens_per_s for run in found.runs[other]):
        return Line(name, figure(found.tokens_per_s("card")), f"no token in a turn ({other})", "", None)
    ratio = found.ratio("card", other)
    beside = f"{figure(found.tokens_per_s(other))} ({other})"
    return Line(
        name, figure(found.tokens_per_s("card")), beside, f"{ratio:.2f}, at least {least:.2f}", round(ratio, 2) >= least
    )


def _no_worse_line(name: str, found: Compared, other: str, read: Callable[[Figures], float]) -> Line:
    own, its = found.median_of("card", read), found.median_of(other, read)
    if not its:
        return Line(name, figure(own), "no answer was whole", "", None)
    return Line(name, figure(own), figure(its), f"{own / its:.2f}, at most 1.00", round(own / its, 2) <= 1.0)


def text_line(model: str, server: LlamaServer | None, turns: int) -> Line:
    """Embed the same texts in turn; return the line."""
    chance = Random(1)
    texts = [" ".join(chance.choices(WORDS, k=TEXT_WORDS.draw(chance))) for _ in range(TEXTS)]
    taken: dict[str, list[float]] = {"card": [], "llama-server": []}
    with serving(model, "--capacity", "4", "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        for _ in range(turns):
            taken["card"].append(uvloop.run(_embedded(socket, texts)))
            if server is not None:
                with server.serving(model, 4, CONTEXT_TOKENS, "--embedding", "--pooling", "mean") as address:
                    _embed_by(address, texts[:4])
                    taken["llama-server"].append(_embed_by(address, texts))
    own = statistics.median(taken["card"])
    name = f"{TEXTS} texts of {TEXT_WORDS} words embedded, s"
    if server is None:
        return Line(name, figure(own), "", "", None)
    ratio = statistics.median(its / mine for mine, its in zip(*taken.values(), strict=True))
    its = statistics.median(taken["llama-server"])
    return Line(name, figure(own), figure(its), f"{ratio:.2f}, at least 1.00", round(ratio, 2) >= 1.0)


async def _embedded(socket: Path, texts: list[str]) -> float:
    async with AsyncClient(socket) as client:
        await client.embed(texts[:4])
        started = time.perf_counter()
        assert len((await client.embed(texts)).embeddings) == len(texts)
        return time.perf_counter() - started


def _embed_by(address: str, texts: list[str]) -> float:
    url = address.rsplit("/", 1)[0] + "/v1/embeddings"
    data = json.dumps({"input": texts, "model": "any"}).encode()
    started = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as answer:
        assert len(json.load(answer)["data"]) == len(texts)
    return time.perf_counter() - started


def long_lines(model: str, turns: int) -> Iterator[Line]:
    """Let a prompt of 2,000 tokens join seven decoders; yield the lines."""
    for target in TARGETS_MS:
        found = [long_prompt.measured(model, 2000, target) for _ in range(turns)]
        worst = statistics.median(turn.gaps.max for turn in found)
        most = target + statistics.median(turn.smallest for turn in found)
        name = f"a prompt of 2,000 joins 7, target {target} ms"
        yield Line(f"{name}: worst gap, ms", figure(worst), "", f"at most {figure(most)}", worst <= most)
        first = statistics.median(turn.first / turn.alone for turn in found)
        met = first <= 2.2 if target == 120 else None
        yield Line(f"{name}: first token by alone", f"{first:.2f}", "", "at most 2.20" if target == 120 else "", met)


def own_line(turns: int) -> Line:
    """Return the line of the processor time outside llama.cpp."""
    own = statistics.median(overhead.measured(overhead.case(8)).outside for _ in range(turns))
    return Line("8 streams: CPU outside llama.cpp, us a token", figure(own), "", f"at most {OWN_US:g}", own <= OWN_US)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="card beside llama-server: one table, a verdict a line.")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--model", default="smollm2", metavar="KIND", help="smollm2, or a quantization of random weights"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the lines whose name holds it")
    parser.add_argument("--full", action="store_true", help="more cases")
    given = parser.parse_args()
    model, servers, machine = str(model_file(given.model)), found_llama_servers(MODES), this_machine()
    if not servers:
        print(f"without llama-server: set {VARIABLE} to its path", flush=True)
    bystanders, turns = Bystanders(QUIET, PATIENCE_S), given.turns
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        load.case.name: partial(load_lines, load, servers, turns, bystanders) for load in loads(model, full=given.full)
    }
    half = max(1, turns // 2)  # Each of these takes as long as several turns of the others.
    parts["texts embedded"] = lambda: iter([text_line(model, servers[0] if servers else None, half)])
    parts["a prompt of 2,000 joins 7"] = partial(long_lines, model, half)
    parts["CPU outside llama.cpp"] = lambda: iter([own_line(1)])
    print(markdown(HEADINGS, []), flush=True)
    lines: list[Line] = []
    for name, measure in parts.items():
        if given.only in name:
            for line in measure():
                lines.append(line)
                print(f"| {' | '.join(line.row())} |", flush=True)
    missed = sum(line.met is False for line in lines)
    print(f"\n{len(lines) - missed} lines without a miss, {missed} missed; medians of {turns} turns", flush=True)
    print(f"load average at the begin: {machine.load_average[0]:.2f}; {write_record('verdicts', machine, lines)}")


if __name__ == "__main__":
    main()
