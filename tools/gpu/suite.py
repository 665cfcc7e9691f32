"""The GPU suite: all checks on one build, as one JSON file and one table."""

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.comparison import Case
from benchmarks.report import this_machine, write_record
from tools.gpu.build import Build
from tools.gpu.correctness import Correctness, images
from tools.gpu.failures import killed_under_load, memory_as_planned, out_of_memory
from tools.gpu.hog import device_memory
from tools.gpu.sandbox import sandboxed
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
    """Run the suite against a build, print a line a verdict and write the record; returns whether all of it holds.

    The table of verdicts is beside the record, as Markdown.
    """
    verdicts, machine = [], this_machine()
    with environment(build.environment):
        print(table([]), flush=True)
        for verdict in _verdicts(plan, build, folder):
            verdicts.append(verdict)
            print(table([verdict]).splitlines()[-1], flush=True)
            path = write_record("gpu", machine, {"plan": plan, "verdicts": verdicts})
            path.with_suffix(".md").write_text(table(verdicts) + "\n")
    failing, beside = sum(each.holds is False for each in verdicts), path.with_suffix(".md").name
    print(f"\n{path} and {beside}: {failing} of {len(verdicts)} verdicts do not hold")
    return passed(verdicts)


def _verdicts(plan: Plan, build: Build, folder: Path) -> Iterator[Verdict]:
    found = part("a GPU is found", lambda: [_device(plan)])
    yield from found
    if any(verdict.holds is False for verdict in found):
        return
    models = {f"{preset} {kind}": _model(folder, preset, kind) for preset in plan.presets for kind in plan.types}
    for name, path in models.items():
        for check, verdicts in _CHECKS.items():
            yield from part(f"{name}: {check}", partial(_named, name, verdicts, Served(path, plan.device)))
    yield from part("an image", lambda: [_images(plan.device)])
    for name, path in models.items():
        yield from part(f"{name}: own part of a step", partial(_own_part, name, Served(path, plan.device)))
        for streams in plan.streams:
            case = case_of(f"{name}, {streams} streams", path, streams, plan.seconds)
            yield from part(case.name, partial(_speed, plan, build, Served(path, plan.device), case))


def part(check: str, verdicts: Callable[[], list[Verdict]]) -> list[Verdict]:
    """Return the verdicts of a part of the suite; one that does not hold where it failed, so that the others go on."""
    try:
        return verdicts()
    except Exception as error:  # noqa: BLE001 - of any part of a run that takes an hour
        traceback.print_exc()
        return [Verdict(check, False, f"failed: {type(error).__name__}: {error}")]


def _named(model: str, verdicts: Callable[[Served], list[Verdict]], served: Served) -> list[Verdict]:
    return [Verdict(f"{model}: {each.check}", each.holds, each.found) for each in verdicts(served)]


_CHECKS: Mapping[str, Callable[[Served], list[Verdict]]] = {
    "sandbox": sandboxed,
    "answers": lambda served: Correctness(served).verdicts(),
    "memory as planned": memory_as_planned,
    "out of memory": out_of_memory,
    "kill -9": killed_under_load,
}


def _own_part(model: str, served: Served) -> list[Verdict]:
    return [own_part_of_a_step(served, f"{model}, 8 streams")]


def _speed(plan: Plan, build: Build, served: Served, case: Case) -> list[Verdict]:
    return speed(beside_llama_server(served, build.server, case, plan.turns))


def _images(device: str) -> Verdict:
    with tempfile.TemporaryDirectory() as place:
        return images(Path(place), device)


def _device(plan: Plan) -> Verdict:
    """Return whether the build finds the device that the suite is for."""
    found = device_memory()
    if found is None:
        advice = "ggml finds none: does `nvidia-smi` list one, and does this user reach its driver?"
        return Verdict("a GPU is found", False if plan.device == "gpu" else None, advice)
    return Verdict("a GPU is found", True, f"{found[0] / _GIB:.1f} of {found[1] / _GIB:.1f} GiB are free")


def _model(folder: Path, preset: str, kind: str) -> Path:
    path = folder / f"random-{preset}-{kind}.gguf"
    if not path.exists():
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset=preset, type=kind)
    return path
