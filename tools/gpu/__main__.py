"""`python -m tools.gpu`: pack llama.cpp's source, build it for this machine's GPU, and check card on it."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from car_base.host.cores import usable_cpus
from tools.binding_source import BINDING
from tools.gpu.build import BACKENDS, Build, CannotBuild, build, check_programs, detect, output_of
from tools.gpu.nvcc import check_nvcc, nvcc_options
from tools.gpu.source import pack, unpack
from tools.gpu.suite import Plan, run
from tools.random_models.model_file import TYPES
from tools.random_models.shape import PRESETS

# By version, because a library of another one than the binding's own crashes it.
_FOLDER = Path("build/gpu") / version(BINDING)


def main() -> int:
    """Do one step; returns the exit code."""
    given = _arguments().parse_args()
    archive = given.folder / "llama.cpp.tar.xz"
    try:
        machine = _checked(given) if given.step in ("all", "build") else []
        if given.step in ("all", "pack") and not archive.exists():
            pack(archive)
            print(f"{archive}: {archive.stat().st_size:,} bytes", flush=True)
        if given.step in ("all", "build"):
            _build(archive, given, machine)
        if given.step in ("all", "suite"):
            return 0 if _suite(given) else 1
    except (CannotBuild, ValueError) as error:
        print(f"tools.gpu: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    steps = {
        "pack": "needs the network",
        "build": "needs a compiler and CMake",
        "suite": "needs a build",
        "all": "one after the other",
    }
    text = "; ".join(f"{step}: {needs}" for step, needs in steps.items())
    parser.add_argument("step", nargs="?", choices=steps, default="all", help=text)
    parser.add_argument("--backend", choices=BACKENDS, default="cuda")
    parser.add_argument("--architecture", help="of CUDA, such as 90; without it that of this machine's GPUs")
    parser.add_argument("--jobs", type=int, default=len(usable_cpus()), help="of the compiler")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="for archive, build and models (%(default)s)")
    suite = parser.add_argument_group("suite")
    suite.add_argument("--device", choices=("gpu", "cpu"), help="without it the GPU, of a build for the CPU the CPU")
    suite.add_argument("--presets", nargs="+", choices=PRESETS, default=["0.6b", "4b"], help="dimensions of models")
    suite.add_argument("--types", nargs="+", choices=TYPES, default=["q8_0", "q4_0"], help="of their weights")
    suite.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    suite.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    suite.add_argument("--turns", type=int, default=3, help="of card and llama-server")
    return parser


def _suite(given: argparse.Namespace) -> bool:
    """Run the suite on the build of the backend; returns whether all of it holds."""
    built = Build((given.folder / f"build-{given.backend}" / "bin").resolve())
    if not built.server.exists():
        raise CannotBuild(f"{built.server} is missing: run `python -m tools.gpu build` first")
    device = given.device or ("cpu" if given.backend == "cpu" else "gpu")
    plan = Plan(
        device, tuple(given.presets), tuple(given.types), tuple(given.streams), seconds=given.seconds, turns=given.turns
    )
    return run(plan, built, given.folder)


def _checked(given: argparse.Namespace) -> list[str]:
    """Return the options of a build that this machine decides; raises CannotBuild where it lacks what a build needs."""
    check_programs(given.backend)
    if given.backend != "cuda":
        return []
    architecture = given.architecture or detect(output_of)
    check_nvcc(architecture)
    return nvcc_options(architecture)


def _build(archive: Path, given: argparse.Namespace, machine: list[str]) -> None:
    if not archive.exists():
        raise CannotBuild(f"{archive} is missing: run `python -m tools.gpu pack` where there is a network, and copy it")
    # The variables hold for programs in any folder.
    source = unpack(archive, given.folder.resolve())
    built, seconds = build(source, backend=given.backend, machine=machine, jobs=given.jobs)
    print(f"built in {seconds:.0f} s; card runs on it with")
    print(" ".join(f"{name}={value}" for name, value in built.environment.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
