"""card against other servers and against its own limit, in turn.

`python -m benchmarks.throughput [--full] [--turns N] [--only TEXT]` prints a Markdown table and writes
benchmarks/out/throughput.json. llama-server takes part if LLAMA_SERVER is its path.
"""

import argparse

from benchmarks.comparison import Bystanders, Case, Compared, Target, compare
from benchmarks.models import model_file
from benchmarks.report import figure, markdown, this_machine, write_record
from benchmarks.targets.bare_loop import BareLoop
from benchmarks.targets.card import Card
from benchmarks.targets.llama_server import VARIABLE, found_llama_servers
from car_client.carctl.bench.workload import Lengths, Workload

GREEDY = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
WARM_UP_S, SECONDS = 1.5, 8.0
SEQUENCES = 16
# What others may have of the cores in a run that counts.
QUIET = 0.05
CONTEXT_TOKENS = 1024
SHORT = Lengths(16, 16)
HEADINGS = (
    "case, target",
    "tokens/s",
    "card is",
    "first token p50, p99 ms",
    "between tokens p50, p99 ms",
    "others' CPU",
)


def equal(kind: str, clients: int) -> Case:
    """Clients that ask for as much as there are sequences, all of one length."""
    name = f"{kind}, {clients} clients, equal lengths"
    return _case(name, kind, clients, _workload(clients, SHORT, Lengths(60, 60)))


def mixed(kind: str, clients: int, prompts: Lengths = SHORT) -> Case:
    """Answers of 15 to 105 tokens on sixteen sequences."""
    more = "" if prompts == SHORT else f", prompts of {prompts}"
    name = f"{kind}, {clients} clients, answers of 15-105{more}"
    return _case(name, kind, SEQUENCES, _workload(clients, prompts, Lengths(15, 105)))


def _workload(clients: int, prompts: Lengths, answers: Lengths) -> Workload:
    return Workload(
        clients=clients, seconds=SECONDS, warm_up=WARM_UP_S, prompts=prompts, answers=answers, options=GREEDY
    )


def _case(name: str, kind: str, sequences: int, workload: Workload) -> Case:
    return Case(
        name=name,
        model=str(model_file(kind)),
        sequences=sequences,
        context_tokens=CONTEXT_TOKENS,
        workload=workload,
    )


def cases(*, full: bool) -> list[Case]:
    """Return what is measured."""
    short = [equal("q8_0", 1), equal("q8_0", 8), mixed("q8_0", 8)]
    if not full:
        return short
    more = [mixed(kind, clients) for kind in ("q8_0", "q4_0") for clients in (2, 8, 16)]
    longer = [mixed("q8_0", 16, Lengths(8, 64)), mixed("q8_0", 8, Lengths(100, 400))]
    in_step = [*(equal("q8_0", clients) for clients in (1, 4, 8, 16)), equal("q4_0", 1), equal("q4_0", 8)]
    real = [equal("smollm2", 1), equal("smollm2", 8), mixed("smollm2", 8)]
    return [*in_step, *more, *longer, *real]


def targets(*, full: bool) -> list[Target]:
    """Return who takes part."""
    modes = ("split", "unified", "as it comes") if full else ("split", "unified")
    return [Card(), BareLoop(), *found_llama_servers(modes)]


def rows(found: Compared) -> list[list[str]]:
    """Return the lines of a case: a line for each target, with how much faster card is."""
    lines = []
    for name in found.runs:
        first = [found.median_of(name, lambda run: run.ttft_ms.p50), found.median_of(name, lambda run: run.ttft_ms.p99)]
        gaps = [found.median_of(name, lambda run: run.itl_ms.p50), found.median_of(name, lambda run: run.itl_ms.p99)]
        lines.append(
            [
                f"{found.case.name}: {name}",
                figure(found.tokens_per_s(name)),
                f"{found.ratio('card', name):.2f} x",
                ", ".join(map(figure, first)),
                ", ".join(map(figure, gaps)),
                f"{max(found.bystanders[name]):.0%}",
            ]
        )
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="card against other servers and against a bare loop.")
    parser.add_argument("--full", action="store_true", help="more cases, every way to start the other servers")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose name holds it")
    parser.add_argument("--patience", type=float, default=60.0, metavar="S", help="for others to leave the cores alone")
    given = parser.parse_args()
    who = targets(full=given.full)
    if not found_llama_servers():
        print(f"without llama-server: set {VARIABLE} to its path", flush=True)
    machine = this_machine()
    print(markdown(HEADINGS, []), flush=True)
    bystanders = Bystanders(QUIET, given.patience)
    found = []
    for case in cases(full=given.full):
        if given.only in case.name:
            found.append(compare(case, who, given.turns, bystanders))
            print("\n".join(f"| {' | '.join(row)} |" for row in rows(found[-1])), flush=True)
    print(f"\nload average at the begin: {machine.load_average[0]:.2f}; {write_record('throughput', machine, found)}")


if __name__ == "__main__":
    main()
