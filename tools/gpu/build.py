"""llama.cpp's libraries and its server, built from the archive, and the variables that point the binding at them."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Options of CMake by backend, beside those of every build.
_COMMON = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    # Without this the page of llama-server would be fetched from the network.
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
BACKENDS: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    # The linker leaves cuBLAS and the driver to the loader: their folders are often none of its own.
    "cuda": ("-DGGML_CUDA=ON", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"),
    "hip": ("-DGGML_HIP=ON",),
    "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),
    "vulkan": ("-DGGML_VULKAN=ON",),
}
# Programs that a backend's build needs beside a C++ compiler.
_PROGRAMS = {"cuda": ("nvcc",), "hip": ("hipcc",), "vulkan": ("glslc",)}
# Where CUDA's installer puts nvcc; the PATH of many machines lacks it.
_CUDA = "/usr/local/cuda/bin"
# The file in which a build with CUDA found cuBLAS, in CMake's cache; and the loader's list of folders.
_CUBLAS = re.compile(r"^CUDA_cublas_LIBRARY:FILEPATH=(/.*)/[^/]*$", re.MULTILINE)
_LOADER = "LD_LIBRARY_PATH"
_TARGETS = ("llama", "mtmd", "llama-server")

Run = Callable[[Sequence[str]], str]


class CannotBuild(Exception):
    """A build that this machine cannot do; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Build:
    """The products of a build, all in one folder."""

    folder: Path

    @property
    def server(self) -> Path:
        """The path of llama-server."""
        return self.folder / "llama-server"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the binding loads these libraries in place of its own.

        That of the loader is for cuBLAS, in a toolkit that may be anywhere; engines may read the folders that it names.
        """
        own = {"LLAMA_CPP_LIB_PATH": str(self.folder), "MTMD_CPP_LIB": str(self.folder)}
        cache = self.folder.parent / "CMakeCache.txt"
        found = _CUBLAS.search(cache.read_text(errors="replace")) if cache.exists() else None
        folders = [found[1], *filter(None, [os.environ.get(_LOADER)])] if found else []
        return own | ({_LOADER: ":".join(folders)} if folders else {})


def architecture(listing: str) -> str:
    """Return CMake's name of the one architecture in a list of compute capabilities, as nvidia-smi writes them."""
    found = sorted({line.strip().replace(".", "") for line in listing.splitlines() if line.strip()})
    if len(found) == 1 and found[0].isdigit():
        return found[0]
    kinds = ", ".join(found) or "none"
    raise CannotBuild(f"a build is for one architecture, and nvidia-smi lists {kinds}: name it by --architecture")


def detect(run: Run) -> str:
    """Return the architecture of this machine's NVIDIA GPUs."""
    return architecture(run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]))


def options(backend: str) -> list[str]:
    """Return the options of CMake for a backend on any machine."""
    return [*_COMMON, *BACKENDS[backend]]


def installed(name: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=_CUDA)


def check_programs(backend: str, which: Callable[[str], str | None] = installed) -> None:
    """Raise CannotBuild where programs that a build needs are not installed."""
    needed = ("cmake", *_PROGRAMS.get(backend, ()))
    if lacking := [name for name in needed if not which(name)]:
        places = f"the PATH or in {_CUDA}" if backend == "cuda" else "the PATH"
        raise CannotBuild(f"a build for {backend} needs {' and '.join(lacking)}, not found on {places}: install first")


def output_of(command: Sequence[str]) -> str:
    """Return a program's output; raises CannotBuild where it is missing or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        remedy = "install the GPU's driver, or name the architecture by --architecture for another machine"
        raise CannotBuild(f"{command[0]} failed ({error}): {remedy}") from error


def build(source: Path, *, backend: str, machine: Sequence[str], jobs: int) -> tuple[Build, float]:
    """Configure with the options of this machine, too, and build; returns the products and the seconds that it took."""
    started, place = time.monotonic(), source.parent / f"build-{backend}"
    _do(["cmake", "-S", str(source), "-B", str(place), *options(backend), *machine])
    _do(["cmake", "--build", str(place), "--parallel", str(jobs), "--target", *_TARGETS])
    return Build(place / "bin"), time.monotonic() - started


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"{command[0]} ended with {done.returncode}: its own lines above say why")
