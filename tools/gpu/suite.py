"""The GPU suite: all checks on one build, as one JSON file and one table."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import this_machine, write_record
from tools.gpu.build import Build
from tools.gpu.correctness import Correctness, images
from tools.gpu.failures import killed_under_load, memory_as_planned, out_of_memory
from tools.gpu.hog import device_memory
from tools.gpu.served import Served, environment
from tools.gpu.speed import beside_llama_server, case_of, own_part_of_a_step
from tools.gpu.verdicts import Verdict, passed, speed, table
from tools.random_model import generate

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What the suite runs: models by preset and type, numbers of streams, seconds and turns of each measurement."""

    device: str
    presets: tuple[str, ...]
    types: tuple[str, ...]
    streams: tuple[int, ...]
    seconds: float
    turns: int


def run(plan: Plan, build: Build, folder: Path) -> bool:
    """Run the suite against a build, print a line a verdict and write the record; returns whether all of it holds."""
    verdicts, machine = [], this_machine()
    with environment(build.environment):
        print(table([]), flush=True)
        for verdict in _verdicts(plan, build, folder):
            verdicts.append(verdict)
            print(table([verdict]).splitlines()[-1], flush=True)
            path = write_record("gpu", machine, {"plan": plan, "verdicts": verdicts})
    print(f"\n{path}: {sum(each.holds is False for each in verdicts)} of {len(verdicts)} verdicts do not hold")
    return passed(verdicts)


def _verdicts(plan: Plan, build: Build, folder: Path) -> Iterator[Verdict]:
    yield _device(plan)
    models = {f"{preset} {kind}": _model(folder, preset, kind) for preset in plan.presets for kind in plan.types}
    for name, path in models.items():
        for verdict in _of_model(Served(path, plan.device)):
            yield Verdict(f"{name}: {verdict.check}", verdict.holds, verdict.found)
    with tempfile.TemporaryDirectory() as place:
        yield images(Path(place), plan.device)
    for name, path in models.items():
        served = Served(path, plan.device)
        yield own_part_of_a_step(served, f"{name}, 8 streams")
        for streams in plan.streams:
            case = case_of(f"{name}, {streams} streams", path, streams, plan.seconds)
            yield from speed(beside_llama_server(served, build.server, case, plan.turns))


def _of_model(served: Served) -> Iterator[Verdict]:
    yield from Correctness(served).verdicts()
    yield from memory_as_planned(served)
    yield from out_of_memory(served)
    yield from killed_under_load(served)


def _device(plan: Plan) -> Verdict:
    """Return whether the build finds the device that the suite is for."""
    found = device_memory()
    if found is None:
        return Verdict("a GPU is found", False if plan.device == "gpu" else None, "ggml finds none")
    return Verdict("a GPU is found", True, f"{found[0] / _GIB:.1f} of {found[1] / _GIB:.1f} GiB are free")


def _model(folder: Path, preset: str, kind: str) -> Path:
    path = folder / f"random-{preset}-{kind}.gguf"
    if not path.exists():
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset=preset, type=kind)
    return path
