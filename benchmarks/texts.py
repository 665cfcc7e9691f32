"""Embeddings: texts a second, and what they cost those who stream meanwhile.

`python -m benchmarks.texts [--peer URL]` prints one line a figure. `--peer` embeds the same texts with a server that
speaks OpenAI's protocol, such as the binding's own (`python -m llama_cpp.server --embedding true`), in turn.
"""

import argparse
import statistics
from pathlib import Path

import uvloop

from benchmarks.generator import GREEDY, decoders, embedded
from benchmarks.models import model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_base import guide
from car_client import AsyncClient

WORDS = ("daemon", "serves", "every", "local", "app", "from", "one", "place", "and", "says", "how", "much", "runs")
TEXTS = 10_000
BATCH = 100


def main() -> None:
    """Measure throughput on the built-in model, and the cost to streams on a larger one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="address of a server with /v1/embeddings that serves the guide model")
    peer = parser.parse_args().peer
    report = Report("texts")
    with serving(guide.PATH, "--capacity", "4") as socket:
        report.say("10,000 short texts, the guide model: texts/s", TEXTS / uvloop.run(embedded(str(socket), batches())))
        if peer:
            report.say("  by the other server: texts/s", TEXTS / uvloop.run(embedded(peer, batches())))
            report.say("  here again: texts/s", TEXTS / uvloop.run(embedded(str(socket), batches())))
    with serving(model_file("q8_0"), "--capacity", "9", "--context-tokens", "1024") as socket:
        uvloop.run(_beside_streams(socket, report))
    report.close()


def batches() -> list[list[str]]:
    """Return texts of six to eleven words."""
    texts = [
        " ".join(WORDS[(number * 7 + place * 3) % len(WORDS)] for place in range(6 + number % 6))
        for number in range(TEXTS)
    ]
    return [texts[start : start + BATCH] for start in range(0, TEXTS, BATCH)]


async def _beside_streams(socket: Path, report: Report) -> None:
    alone, _ = await _streams(socket, embed=False)
    beside, answered = await _streams(socket, embed=True)
    report.say("8 streams of a 135M model alone: between tokens p50 ms", statistics.median(alone))
    report.say("  while texts are embedded, p50 ms", statistics.median(beside), max(beside))
    report.say("  ratio", statistics.median(beside) / statistics.median(alone))
    report.say("  texts embedded meanwhile", answered)


async def _streams(socket: Path, *, embed: bool) -> tuple[list[float], int]:
    running = await decoders(str(socket), 8, 150, GREEDY)
    answered = 0
    async with AsyncClient(socket) as client:
        while embed and not running.done():
            answered += len((await client.embed(["a few short words"] * 8)).embeddings)
        times = await running
    return [gap for one in times for gap in one.gaps_ms], answered


if __name__ == "__main__":
    main()
