"""A long prompt that joins seven decoders: how long they wait, and how long it takes; card and llama-server in turn.

`python -m benchmarks.long_prompt [--tokens N] [--turns N] [--model KIND] [--targets MS ...]`, the last for a daemon
with each of these values of `step_target_ms`; the model is SmolLM2 (`make real-model`), or random weights of its
dimensions.
"""

import argparse
import statistics
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import uvloop

from benchmarks.generator import GREEDY, decoders, stream
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import found_llama_servers
from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_client.carctl.bench.figures import Spread, TimedAnswer, spread

DECODERS = 7
SEQUENCES, CONTEXT_TOKENS = 8, 4096
SMALLEST = 16
REUSES = {**GREEDY, "cache_prompt": True}
SIZE = ("--capacity", str(SEQUENCES), "--context-tokens", str(CONTEXT_TOKENS))


class Joined(NamedTuple):
    """Milliseconds: between the decoders' tokens while the prompt is read, its first token beside them and alone.

    `smallest` is what 16 more tokens take after the prompt.
    """

    gaps: Spread
    first: float
    alone: float
    smallest: float


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description="A long prompt that joins seven decoders.")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument(
        "--model", default="smollm2", metavar="KIND", help="smollm2, or a quantization of random weights"
    )
    parser.add_argument("--targets", type=int, nargs="+", default=[STEP_TARGET_MS])
    given = parser.parse_args()
    report = Report(f"long_prompt_{given.tokens}")
    model = str(model_file(given.model))
    servers = found_llama_servers(("split", "unified"))
    found: defaultdict[str, list[Joined]] = defaultdict(list)
    for _ in range(given.turns):
        for target in given.targets:
            found[f"card, {target} ms"].append(measured(model, given.tokens, target))
        for server in servers:
            with server.serving(model, SEQUENCES, CONTEXT_TOKENS) as address:
                found[server.name].append(uvloop.run(_joined(address, given.tokens)))
    for name, turns in found.items():
        _say(report, name, given.tokens, turns)
    report.close()


def measured(model: str, tokens: int, target: int) -> Joined:
    """Return what a daemon with this target, in ms, does."""
    with serving(model, *SIZE, config=f"[scheduler]\nstep_target_ms = {target}\n") as socket:
        return uvloop.run(_joined(str(socket), tokens))


async def _joined(address: str, tokens: int) -> Joined:
    prompt = [300 + n % 197 for n in range(tokens)]
    await stream(address, prompt[:64], 4, GREEDY)
    alone = await stream(address, prompt, 4, REUSES)
    more = await stream(address, prompt + prompt[:SMALLEST], 4, REUSES)
    running = await decoders(address, DECODERS, 100 + tokens // 16, GREEDY)
    joined = await stream(address, prompt, 4, GREEDY)
    beside = (joined.sent_at, joined.piece_times[0])
    gaps = [gap for times in await running for gap in _gaps_within(times, *beside)]
    return Joined(spread(gaps), joined.first_ms, alone.first_ms, more.first_ms)


def _gaps_within(times: TimedAnswer, begin: float, end: float) -> list[float]:
    """Return the gaps that overlap with the time from the long prompt's arrival to its first token, in ms."""
    pairs = pairwise(times.piece_times)
    return [(later - earlier) * 1000 for earlier, later in pairs if later > begin and earlier < end]


def _say(report: Report, name: str, tokens: int, turns: list[Joined]) -> None:
    worst = [turn.gaps.max for turn in turns]
    report.say(f"{name}: {tokens}-token prompt joins {DECODERS}: worst gap ms", statistics.median(worst), max(worst))
    report.say(f"{name}:   the smallest chunk at its end ms", statistics.median(turn.smallest for turn in turns))
    report.say(f"{name}:   gaps p99 ms", statistics.median(turn.gaps.p99 for turn in turns))
    report.say(f"{name}:   its first token ms", statistics.median(turn.first for turn in turns))
    report.say(f"{name}:   ratio to alone", statistics.median(turn.first / turn.alone for turn in turns))


if __name__ == "__main__":
    main()
