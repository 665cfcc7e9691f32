"""Lines of the table of verdicts, and the parts that other benchmarks than that of streaming clients measure."""

import statistics
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import uvloop

from benchmarks import conversations, long_prompt, overhead, prefixes
from benchmarks.generator import embedded
from benchmarks.report import figure
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import LlamaServer
from car_client.carctl.bench.completions import COMPLETION
from car_client.carctl.bench.workload import WORDS, Lengths

CONTEXT_TOKENS = 1024
# A word is a token.
TEXTS, TEXT_WORDS = 64, Lengths(85, 115)
TARGETS_MS = (30, 120, 300)
OWN_US = 15.0
ROUND_TRIP = 1.5
PREFIX_TOKENS, PREFIX_PERCENT = 2000, 10.0
# Bars of the conversations: prompt tokens computed for so many users, and the seconds of llama-server's.
BOUNDED_USERS, MOST_COMPUTED, MOST_SECONDS = 12, 1300, 0.92


class Line(NamedTuple):
    """A line of the table; `met` is None if nothing was beside card, or no bar is set."""

    name: str
    card: str
    beside: str
    bar: str
    met: bool | None

    def row(self) -> list[str]:
        """Return its cells."""
        return [self.name, self.card, self.beside, self.bar, {True: "met", False: "MISSED", None: "-"}[self.met]]


def at_most(name: str, own: float, most: float) -> Line:
    """Return the line of a figure with a bar of its own."""
    return Line(name, figure(own), "", f"at most {figure(most)}", own <= most)


def ratio_at_most(name: str, own: Sequence[float], its: Sequence[float], most: float) -> Line:
    """Return the line of the median ratio, turn by turn, of card's figures to those beside them, in hundredths."""
    ratio = round(statistics.median(mine / other for mine, other in zip(own, its, strict=True)), 2)
    medians = figure(statistics.median(own)), figure(statistics.median(its))
    return Line(name, *medians, f"{ratio:.2f}, at most {most:.2f}", ratio <= most)


def text_line(model: str, server: LlamaServer | None, turns: int) -> Line:
    """Embed the same texts in turn; return the line."""
    chance = Random(1)
    texts = [" ".join(chance.choices(WORDS, k=TEXT_WORDS.draw(chance))) for _ in range(TEXTS)]
    taken: dict[str, list[float]] = {"card": [], "llama-server": []}
    with serving(model, "--capacity", "4", "--context-tokens", str(CONTEXT_TOKENS)) as socket:
        for _ in range(turns):
            uvloop.run(embedded(str(socket), [texts[:4]]))
            taken["card"].append(uvloop.run(embedded(str(socket), [texts])))
            if server is not None:
                with server.serving(model, 4, CONTEXT_TOKENS, "--embedding", "--pooling", "mean") as completions:
                    address = completions.removesuffix(COMPLETION)
                    uvloop.run(embedded(address, [texts[:4]]))
                    taken["llama-server"].append(uvloop.run(embedded(address, [texts])))
    own = statistics.median(taken["card"])
    name = f"{TEXTS} texts of {TEXT_WORDS} words embedded, s"
    if server is None:
        return Line(name, figure(own), "", "", None)
    ratio = statistics.median(its / mine for mine, its in zip(*taken.values(), strict=True))
    its = statistics.median(taken["llama-server"])
    return Line(name, figure(own), figure(its), f"{ratio:.2f}, at least 1.00", round(ratio, 2) >= 1.0)


def long_lines(model: str, turns: int) -> Iterator[Line]:
    """Let a prompt of 2,000 tokens join seven decoders; yield the lines."""
    for target in TARGETS_MS:
        found = [long_prompt.measured(model, 2000, target) for _ in range(turns)]
        worst = statistics.median(turn.gaps.max for turn in found)
        most = target + statistics.median(turn.smallest for turn in found)
        name = f"a prompt of 2,000 joins 7, target {target} ms"
        yield at_most(f"{name}: worst gap, ms", worst, most)
        first = statistics.median(turn.first / turn.alone for turn in found)
        met = first <= 2.2 if target == 120 else None
        yield Line(f"{name}: first token by alone", f"{first:.2f}", "", "at most 2.20" if target == 120 else "", met)


def own_line(turns: int) -> Line:
    """Return the line of the processor time outside llama.cpp."""
    own = statistics.median(overhead.measured(overhead.case(8)).outside for _ in range(turns))
    return at_most("8 streams: CPU outside llama.cpp, us a token", own, OWN_US)


def call_line(turns: int) -> Line:
    """Return the line of a small call beside an echo with the same libraries."""
    trips, _ = overhead.calls(turns)
    own, echo = ([trip.p50 * 1000 for trip in trips[name]] for name in ("card", "echo"))
    return ratio_at_most("inference/capacity beside a bare echo: round trip p50, us", own, echo, ROUND_TRIP)


def conversation_lines(model: str, case: conversations.Case, servers: list[LlamaServer], turns: int) -> Iterator[Line]:
    """Let users hold conversations on card and llama-server in turn; yield the lines of a case."""
    found = conversations.measured(model, case, servers[:1], turns)
    own, *others = (conversations.figures(runs) for runs in found.values())
    bars = {conversations.SECONDS: MOST_SECONDS, conversations.LATE_P95: 1.0}
    for what, values in own.items():
        name, beside = f"{case}: {what}", [other[what] for other in others]
        if what == conversations.COMPUTED and case.users == BOUNDED_USERS:
            line = at_most(name, statistics.median(values), MOST_COMPUTED)
            yield line._replace(beside=_medians(beside))
        elif what in bars and beside:
            yield ratio_at_most(name, values, beside[0], bars[what])
        else:
            yield Line(name, figure(statistics.median(values)), _medians(beside), "", None)


def _medians(runs: list[list[float]]) -> str:
    return ", ".join(figure(statistics.median(each)) for each in runs)


def restart_line(model: str, turns: int) -> Line:
    """Let prompts find their prefix in a file of the daemon before; return the line."""
    found = prefixes.after_restart(model, PREFIX_TOKENS, turns)
    name = f"a prefix of {PREFIX_TOKENS:,} after a restart: first token, percent of cold"
    line = at_most(name, found.percent, PREFIX_PERCENT)
    return line._replace(beside=f"cold {figure(found.cold)} ms")
