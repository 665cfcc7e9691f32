"""`python -m tools.gpu`: pack llama.cpp's source, build it for this machine's GPU, and check card on it."""

import argparse
import os
import sys
from pathlib import Path

from tools.gpu.build import BACKENDS, CannotBuild, build, detect, output_of
from tools.gpu.source import pack, unpack

_FOLDER = Path("build/gpu")


def main() -> int:
    """Do one step; returns the exit code."""
    given = _arguments().parse_args()
    archive = given.folder / "llama.cpp.tar.xz"
    try:
        if given.step in ("all", "pack") and not archive.exists():
            pack(archive)
            print(f"{archive}: {archive.stat().st_size:,} bytes", flush=True)
        if given.step in ("all", "build"):
            _build(archive, given)
    except (CannotBuild, ValueError) as error:
        print(f"tools.gpu: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    steps = {"pack": "needs the network", "build": "a compiler and CMake", "all": "one after the other"}
    text = "; ".join(f"{step}: {needs}" for step, needs in steps.items())
    parser.add_argument("step", nargs="?", choices=steps, default="all", help=text)
    parser.add_argument("--backend", choices=BACKENDS, default="cuda")
    parser.add_argument("--architecture", help="of CUDA, such as 90; without it that of this machine's GPUs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the compiler")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="for archive and build (%(default)s)")
    return parser


def _build(archive: Path, given: argparse.Namespace) -> None:
    if not archive.exists():
        raise CannotBuild(f"{archive} is missing: run `python -m tools.gpu pack` where there is a network, and copy it")
    chosen = given.architecture or (detect(output_of) if given.backend == "cuda" else "")
    source = unpack(archive, given.folder)
    built, seconds = build(source, backend=given.backend, architecture=chosen, jobs=given.jobs)
    print(f"built in {seconds:.0f} s; card runs on it with")
    print(" ".join(f"{name}={value}" for name, value in built.environment.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
