"""The record of a benchmark's run: a JSON file with its figures and the machine."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from benchmarks.models import OUT


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
