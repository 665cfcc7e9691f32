"""card beside llama-server in turn: one table, with a verdict on each line.

`LLAMA_SERVER=PATH python -m benchmarks.verdicts [--turns N] [--model KIND] [--only TEXT] [--full]` takes about nine
minutes with the default of two turns; `--full` adds cases, and its long parts have as many turns as the others. The
model is SmolLM2 (`make real-model`). Without LLAMA_SERVER the lines have card's figures, and verdicts only where the
bar is card's own.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from benchmarks import conversations, verdict_parts
from benchmarks.comparison import Bystanders, Case, Compared, compare
from benchmarks.models import model_file
from benchmarks.report import figure, markdown, this_machine, write_record
from benchmarks.targets.bare_loop import BareLoop
from benchmarks.targets.card import Card
from benchmarks.targets.llama_server import VARIABLE, LlamaServer, found_llama_servers
from benchmarks.verdict_parts import Line
from car_client.carctl.bench.figures import Figures
from car_client.carctl.bench.workload import Lengths, Workload

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
MODES = ("split", "unified")


class Load(NamedTuple):
    """A case of clients, and the least ratio of throughput to llama-server and to the bare loop."""

    case: Case
    least: float
    of_bare: float | None = None
    most_gap_ms: float | None = None
    full: bool = False  # left out by default


def loads(model: str) -> Iterator[Load]:
    """Yield the cases of streaming clients."""

    plain = Workload(
        seconds=WARM_UP_S + SECONDS, warm_up=WARM_UP_S, prompts=SHORT, answers=Lengths(60, 60), options=GREEDY
    )

    def case(name: str, clients: int, **more: Any) -> Case:
        workload = replace(plain, clients=clients, **more)
        return Case(name=name, model=model, sequences=clients, context_tokens=CONTEXT_TOKENS, workload=workload)

    for clients, of_bare in ((1, 0.96), (8, 0.96), (16, 0.97)):
        yield Load(case(f"{clients} clients, answers of 60", clients), 1.0, of_bare, full=clients == 16)
    for clients in (2, 8, 16):
        mixed = case(f"{clients} clients, answers of 15-105", clients, answers=Lengths(15, 105))
        yield Load(mixed, 1.0, full=clients == 2)
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


class Part(NamedTuple):
    """Lines that are measured together; `full` ones take long and are left out by default."""

    name: str
    measure: Callable[[], Iterator[Line]]
    full: bool = False


def all_parts(model: str, servers: list[LlamaServer], turns: int, long_turns: int) -> Iterator[Part]:
    """Yield every part; one whose turn takes as long as several turns of the others has `long_turns` of them."""
    bystanders = Bystanders(QUIET, PATIENCE_S)
    for load in loads(model):
        yield Part(load.case.name, partial(load_lines, load, servers, turns, bystanders), load.full)
    embedder = servers[0] if servers else None
    yield Part("texts embedded", lambda: iter([verdict_parts.text_line(model, embedder, long_turns)]))
    yield Part("a prompt of 2,000 joins 7", partial(verdict_parts.long_lines, model, long_turns))
    yield Part("CPU outside llama.cpp", lambda: iter([verdict_parts.own_line(1)]))
    yield Part("inference/capacity beside a bare echo", lambda: iter([verdict_parts.call_line(turns)]))
    for case in conversations.CASES:
        measure = partial(verdict_parts.conversation_lines, model, case, servers, long_turns)
        yield Part(str(case), measure, full=True)
    yield Part("a prefix after a restart", lambda: iter([verdict_parts.restart_line(model, long_turns)]), full=True)


def chosen_of(parts: Sequence[Part], only: str, *, full: bool) -> list[Part]:
    """Return the parts to measure: those whose name holds `only`, else all, or all that are not left out by default."""
    return [part for part in parts if only in part.name and (only or full or not part.full)]


def summary(lines: Sequence[Line], left_out: Sequence[Part], turns: int) -> str:
    """Return the count of each verdict, and the names of what was not measured."""
    met, missed, open_lines = (sum(line.met is verdict for line in lines) for verdict in (True, False, None))
    counts = f"{met} met, {missed} missed, {open_lines} without a verdict; medians of {turns} turns"
    names = ", ".join(part.name for part in left_out)
    return f"{counts}\nnot measured (--full): {names}" if names else counts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="card beside llama-server: one table, a verdict a line.")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--model", default="smollm2", metavar="KIND", help="smollm2, or a quantization of random weights"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="the parts whose name holds it, also those of --full"
    )
    parser.add_argument("--full", action="store_true", help="more cases")
    given = parser.parse_args()
    if given.turns < 1:
        parser.error(f"--turns: {given.turns} turns have no median: give 1 or more")
    model, servers, machine = str(model_file(given.model)), found_llama_servers(MODES), this_machine()
    long_turns = given.turns if given.full else max(1, given.turns // 2)
    parts = list(all_parts(model, servers, given.turns, long_turns))
    chosen = chosen_of(parts, given.only, full=given.full)
    if not chosen:
        names = "; ".join(part.name for part in parts)
        parser.error(f"--only: no part has {given.only!r} in its name; there are: {names}")
    if not servers:
        print(f"without llama-server, so nothing is compared with it: set {VARIABLE} to its path", flush=True)
    print(markdown(HEADINGS, []), flush=True)
    lines: list[Line] = []
    for part in chosen:
        for line in part.measure():
            lines.append(line)
            print(f"| {' | '.join(line.row())} |", flush=True)
    left_out = [] if given.only else [part for part in parts if part not in chosen]
    print(f"\n{summary(lines, left_out, given.turns)}", flush=True)
    print(f"load average at the begin: {machine.load_average[0]:.2f}; {write_record('verdicts', machine, lines)}")


if __name__ == "__main__":
    main()
