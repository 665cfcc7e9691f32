"""nvcc: whether it fits its C++ compiler, cuBLAS and the GPU, found out in a second; and a build's options for it."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.gpu.build import CannotBuild, installed

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

Errors = Callable[[Sequence[str]], str]


def errors_of(command: Sequence[str]) -> str:
    """Return the lines that a program which fails writes to stderr; none if it succeeds."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


def nvcc_options(architecture: str) -> list[str]:
    """Return CMake's options for nvcc and one architecture: each further one compiles everything again."""
    return [f"-DCMAKE_CUDA_COMPILER={installed('nvcc')}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}"]


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
