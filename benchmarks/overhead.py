"""What the daemon costs: streams through the socket against a bare loop of the same engine, in one run.

`python benchmarks/overhead.py` prints a table; the two take turns, and medians are compared.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workload import Workload
from car_client import AsyncClient
from tools.random_model import generate

ROOT = Path(__file__).parent.parent
START_S = 60


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3, help="runs of each, in turn")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="answers of each stream in a run")
    parser.add_argument("--type", default="q8_0", choices=["q8_0", "q4_0", "f16"])
    given = parser.parse_args()
    workload = Workload(given.streams, given.rounds, prompt_tokens=16, answer_tokens=60)
    model = _model(given.type)
    bare, served = [], []
    for _ in range(given.runs):
        bare.append(_bare(workload, model))
        served.append(_served(workload, model))
    _report(given.type, workload, bare, served)


def _model(kind: str) -> Path:
    path = ROOT / "benchmarks" / "out" / f"random-135m-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset="135m", type=kind)
    return path


def _bare(workload: Workload, model: Path) -> float:
    return float(_module("benchmarks.bare_loop", *workload.as_arguments(), str(model)))


def _served(workload: Workload, model: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, _daemon(Path(folder) / "card.sock", workload, model) as socket:
        figures: dict[str, float] = json.loads(
            _module("benchmarks.clients", *workload.as_arguments(), str(socket)).splitlines()[-1]
        )
    return figures


@contextmanager
def _daemon(socket: Path, workload: Workload, model: Path) -> Iterator[Path]:
    command = [
        *(sys.executable, "-c", "from car_daemon.main import main; main()"),
        *("--socket", str(socket), "--model", str(model), "--log-level", "warning"),
        *("--capacity", str(workload.streams), "--context-tokens", "1024"),
    ]
    daemon = subprocess.Popen(command)
    try:
        asyncio.run(_started(socket))
        yield socket
    finally:
        daemon.terminate()
        daemon.wait(timeout=START_S)


async def _started(socket: Path) -> None:
    async with AsyncClient(socket, connect_timeout=START_S) as client:
        await client.connect()


def _module(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", name, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout


def _report(kind: str, workload: Workload, bare: list[float], served: list[dict[str, float]]) -> None:
    limit = statistics.median(bare)
    print(f"135M {kind}, {workload.streams} streams, {workload.prompt_tokens} + {workload.answer_tokens} tokens")
    print(f"bare loop  {limit:8.1f} tokens/s  {[round(one, 1) for one in bare]}")
    for name in served[0]:
        values = [one[name] for one in served]
        print(f"{name:14} {statistics.median(values):8.1f}  {[round(one, 1) for one in values]}")
    ratios = [one["tokens_per_s"] / other for one, other in zip(served, bare, strict=True)]
    print(f"ratio to the bare loop {statistics.median(ratios):.3f}  {[round(one, 3) for one in ratios]}")


main()
