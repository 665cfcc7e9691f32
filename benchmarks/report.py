"""The figures of a benchmark: lines and tables for people, and a JSON file with the machine."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from benchmarks.models import OUT


class Report:
    """The figures of one run of a benchmark."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._machine = this_machine()
        self._said: dict[str, list[float]] = {}

    def say(self, what: str, value: float, *more: float) -> None:
        """Print one line: what, its figure, and its worst case if there is one."""
        extra = "".join(f"  ({one:.1f})" for one in more)
        print(f"{what:75} {value:9.2f}{extra}", flush=True)
        self._said[what] = [value, *more]

    def verdict(self, what: str, value: float, bar: float) -> None:
        """Print one line: what, its figure, the most that it may be, and if it holds."""
        print(f"{what:75} {value:9.2f}  at most {bar:.2f}: {'holds' if value <= bar else 'MISSED'}", flush=True)
        self._said[what] = [value, bar]

    def close(self, **more: Any) -> None:
        """Write the record."""
        busy = self._machine.load_average[0]
        path = write_record(self._name, self._machine, {**self._said, **more})
        print(f"load average at the begin: {busy:.2f}; {path}", flush=True)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; figures stand to the right of every column but the first."""
    marks = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, marks, *rows))


def figure(value: float) -> str:
    """Return a figure with three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Machine(Struct, frozen=True):
    """The machine of the figures, and its load: the load averages of 1, 5 and 15 minutes at the begin."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    llama_cpp_python: str
    commit: str
    load_average: tuple[float, float, float]


def this_machine() -> Machine:
    """Return the facts of this machine now."""
    return Machine(
        processor=_processor(),
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=platform.platform(),
        python=platform.python_version(),
        llama_cpp_python=version("llama_cpp_python"),
        commit=_commit(),
        load_average=os.getloadavg(),
    )


def write_record(name: str, machine: Machine, results: Any) -> Path:
    """Write a record and return its path; the begin of a run is when `machine` was taken."""
    path = OUT / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "load_average_at_end": os.getloadavg(),
        "results": results,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
