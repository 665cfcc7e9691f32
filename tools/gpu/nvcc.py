"""nvcc: whether it fits its C++ compiler, cuBLAS and the GPU, found out in a second; and a build's options for it."""

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.gpu.build import CannotBuild, Run, installed

_PROBE = "#include <cublas_v2.h>\n"
_COMPILER = "name an older C++ compiler by NVCC_CCBIN=PATH, or install a newer CUDA toolkit"
# By a part of nvcc's or the compiler's own line.
_REMEDIES: Mapping[str, str] = {
    "unsupported GNU version": _COMPILER,
    "unsupported clang version": _COMPILER,
    "Unsupported gpu architecture": "install a CUDA toolkit that has it, or name another one by --architecture",
    "cublas_v2.h": "install cuBLAS with its headers, which belongs to the CUDA toolkit",
}
_UNKNOWN = "mend the CUDA toolkit, or the C++ compiler that NVCC_CCBIN names"

# A line of its dry run has the folders of its libraries, and of those that stand for a driver's.
_LIBRARIES = re.compile(r"^#\$ LIBRARIES=(.*)", re.MULTILINE)
_FOLDER = re.compile(r'"-L([^"]+)"')
_STUBS = "stubs"

Errors = Callable[[Sequence[str]], str]


def errors_of(command: Sequence[str]) -> str:
    """Return the lines that a program which fails writes to stderr; none where it succeeds."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


def dry_run(command: Sequence[str]) -> str:
    """Return the lines of nvcc's dry run, which it writes to stderr; raises CannotBuild."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{shlex.join(command)} ended with {done.returncode}: {_UNKNOWN}")
    return done.stderr


def nvcc_options(architecture: str, run: Run = dry_run) -> list[str]:
    """Return CMake's options for nvcc, its libraries' folder, and one architecture: each further one compiles again."""
    nvcc = installed("nvcc") or "nvcc"
    lines = _LIBRARIES.search(run([nvcc, "--dryrun", "-x", "cu", os.devnull]))
    folders = [os.path.normpath(each) for each in _FOLDER.findall(lines[1] if lines else "")]
    # The loader would not find cuBLAS in a toolkit that the system's list of folders lacks.
    own = ";".join(each for each in folders if Path(each).name != _STUBS)
    return [
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture}",
        *([f"-DCMAKE_BUILD_RPATH={own}"] if own else []),
    ]


def check_nvcc(architecture: str, errors: Errors = errors_of) -> None:
    """Raise CannotBuild, with one reason and one remedy, where nvcc does not preprocess a file for an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cu"
        probe.write_text(_PROBE)
        lines = errors([installed("nvcc") or "nvcc", _target(architecture), "-E", str(probe), "-o", os.devnull])
    if lines:
        remedy = next((text for part, text in _REMEDIES.items() if part in lines), _UNKNOWN)
        raise CannotBuild(f"nvcc cannot build for architecture {architecture} ({_reason(lines)}): {remedy}")


def _target(architecture: str) -> str:
    """Return nvcc's option for an architecture by CMake's name, such as 90, 90a-real or native; the first of a list."""
    number = re.match(r"\d+[a-z]?", architecture)
    return f"-arch=sm_{number[0]}" if number else f"-arch={architecture}"


def _reason(lines: str) -> str:
    """Return the first error, without the path before it and the advice after it."""
    found = re.search(r"(?:error|fatal)\s*:\s*(?:#error\s*)?[-\s]*(.+)", lines)
    return (found[1] if found else lines).partition("! The nvcc flag")[0].strip()
