"""What the daemon costs: streams through the socket against a bare loop of the same engine, in one run.

`python -m benchmarks.overhead` prints a table; the two take turns, and medians are compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.daemon import random_model, serving
from benchmarks.workload import Workload

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The daemon against a bare loop of the same engine.")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, in turn")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="answers of each stream in a run")
    parser.add_argument("--type", default="q8_0", choices=["q8_0", "q4_0", "f16"])
    given = parser.parse_args()
    workload = Workload(given.streams, given.rounds, prompt_tokens=16, answer_tokens=60)
    model = random_model(given.type)
    bare, served = [], []
    for _ in range(given.runs):
        bare.append(float(_module("benchmarks.bare_loop", *workload.as_arguments(), str(model))))
        served.append(_served(workload, model))
    _report(given.type, workload, bare, served)


def _served(workload: Workload, model: Path) -> dict[str, float]:
    with serving(model, "--capacity", str(workload.streams), "--context-tokens", "1024") as socket:
        figures: dict[str, float] = json.loads(_module("benchmarks.clients", *workload.as_arguments(), str(socket)))
    return figures


def _module(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", name, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


def _report(kind: str, workload: Workload, bare: list[float], served: list[dict[str, float]]) -> None:
    limit = statistics.median(bare)
    print(f"135M {kind}, {workload.streams} streams, {workload.prompt_tokens} + {workload.answer_tokens} tokens")
    print(f"{'bare loop':14} {limit:8.1f} tokens/s  {[round(one, 1) for one in bare]}")
    for name in served[0]:
        values = [one[name] for one in served]
        print(f"{name:14} {statistics.median(values):8.1f}  {[round(one, 1) for one in values]}")
    ratios = [one["tokens_per_s"] / other for one, other in zip(served, bare, strict=True)]
    print(f"ratio to the bare loop {statistics.median(ratios):.3f}  {[round(one, 3) for one in ratios]}")


main()
