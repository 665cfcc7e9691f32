"""`card --check`: whether the installed llama.cpp can decode on this machine, and what would make it faster."""

import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_COMPILERS = ("c++", "g++", "clang++")
_COMPILER_ADVICE = (
    "install a C++ compiler first (Debian, Ubuntu: sudo apt install g++; Fedora: sudo dnf install gcc-c++; "
    "macOS: xcode-select --install), then "
)
REBUILD = (
    "build it on this machine: pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python, or in a checkout: make rebuild"
)
# Without these, llama.cpp computes products of matrices several times slower; AVX-512 adds little to them.
_NEEDED_FEATURES = ("AVX", "AVX2", "FMA", "F16C")
# The guide decodes at 12,000 tokens/s on two cores of a small server; a build without optimization or vector
# instructions stays far below this.
_LEAST_TOKENS_PER_S = 500.0
# The oldest driver of each CUDA release for which llama-cpp-python's project publishes wheels, newest first: by the
# table of toolkits and drivers in NVIDIA's release notes of CUDA 12 (read in copies in November 2026, not on NVIDIA's
# page), and by the project's README, whose index of CUDA 12.5 is missing (its issue 2127).
_CUDA_WHEELS = (((550, 54), "cu124"), ((545, 23), "cu123"), ((535, 54), "cu122"), ((530, 30), "cu121"))
_CUDA_RUNTIME = (
    "install cudart and cuBLAS of the CUDA release in its name, or put their folder into LD_LIBRARY_PATH; "
    "for the CPU alone, {cpu}"
)
_ROCM_RUNTIME = (
    "install ROCm with hipBLAS and rocBLAS, or put its folder into LD_LIBRARY_PATH; for the CPU alone, {cpu}"
)
# Libraries that a build for GPUs needs on its machine, by their names, and the remedy if one is missing.
_LIBRARIES = {
    "libcuda.so": "install NVIDIA's driver, or pass the GPU on to this container; for the CPU alone, {cpu}",
    "libcudart.so": _CUDA_RUNTIME,
    "libcublas": _CUDA_RUNTIME,
    "libamdhip64.so": _ROCM_RUNTIME,
    "libhipblas": _ROCM_RUNTIME,
    "librocblas.so": _ROCM_RUNTIME,
    "libvulkan.so": "install Vulkan's loader (Debian, Ubuntu: sudo apt install libvulkan1); for the CPU alone, {cpu}",
}
_CPU = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/version")
_GPU_PAGE = "docs/howto/gpu.md"


def machine_advice(description: str, cpu: Path = _CPU, driver: Path = _DRIVER) -> list[str]:
    """Return a line for each feature of this machine that the described build leaves unused."""
    found = [slow_build(description, _text(cpu)), unused_gpu(description, _text(driver))]
    return [line for line in found if line is not None]


def slow_build(description: str, cpuinfo: str) -> str | None:
    """Return advice if the CPU has vector instructions that llama.cpp was built without."""
    has = set(re.findall(r"\w+", "".join(re.findall(r"^flags\s*:(.*)", cpuinfo, re.MULTILINE)[:1])))
    built = set(re.findall(r"(\w+) = 1", description))
    missing = [name for name in _NEEDED_FEATURES if name.lower() in has and name not in built]
    if not missing:
        return None
    facts = f"this llama.cpp was built without {', '.join(missing)}, which this CPU has"
    return f"{facts}: models run several times slower; {build_it()}"


def crawl_advice(tokens_per_s: float) -> str | None:
    """Return advice if the guide is decoded so slowly that llama.cpp cannot have been built for this CPU."""
    if tokens_per_s >= _LEAST_TOKENS_PER_S:
        return None
    figures = f"{tokens_per_s:.0f} tokens/s with the built-in model, where {_LEAST_TOKENS_PER_S:.0f} are the least"
    return f"llama.cpp crawls on this CPU ({figures}): {build_it()}"


def unused_gpu(description: str, version: str) -> str | None:
    """Return the CUDA wheel that fits the NVIDIA driver, if llama.cpp was built without CUDA."""
    found = re.search(r"NVRM version:.*?\s(\d+)\.(\d+)", version)
    if found is None or "CUDA" in description:
        return None
    driver = int(found[1]), int(found[2])
    tag = next((tag for oldest, tag in _CUDA_WHEELS if driver >= oldest), None)
    facts = f"this llama.cpp has no CUDA, beside the NVIDIA driver {found[1]}.{found[2]}"
    if tag is None:
        oldest = ".".join(map(str, _CUDA_WHEELS[-1][0]))
        return f"{facts}: the prebuilt wheels need driver {oldest} or newer; update it, or build for it ({_GPU_PAGE})"
    wheel = f"install llama-cpp-python's prebuilt wheel {tag}, or a newer one of CUDA 12 that the driver supports"
    return f"{facts}: {wheel}, or build it ({_GPU_PAGE})"


def start_advice(reason: str) -> str:
    """Return what to do about a llama.cpp that does not start, by the library that the reason names as missing."""
    remedies = (remedy for name, remedy in _LIBRARIES.items() if name in reason)
    return next(remedies, "{cpu}").format(cpu=build_it())


def build_it(build: str = REBUILD, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return how llama.cpp is built here, after the compiler if none is installed."""
    return build if any(map(which, _COMPILERS)) else f"{_COMPILER_ADVICE}{build}"


def _text(path: Path) -> str:
    """Return the text of a file that some systems lack."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_PATIENCE_S = 60.0
_BINDING = "llama_cpp"
_INSTALL = "install it with: pip install 'card-daemon[daemon]' (without a prebuilt wheel this takes some minutes)"


class BindingCheck(NamedTuple):
    """Whether llama.cpp works here, a line for the user, and lines about what would make it faster."""

    works: bool
    text: str
    advice: tuple[str, ...] = ()


def check_binding(model: Path, module: str = "car_engine.trial") -> BindingCheck:
    """Run the trial with a small model; its crash, its silence and its crawl are told with what to do."""
    if importlib.util.find_spec(_BINDING) is None:
        return BindingCheck(False, f"llama-cpp-python is not installed: {build_it(_INSTALL)}")
    try:
        # This Python and a module of this package, without a shell, and without the current folder (-P): others may
        # have left a file with the name of a module there.
        trial = subprocess.run(  # noqa: S603
            [sys.executable, "-P", "-m", module, model],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return BindingCheck(False, f"llama.cpp decoded nothing within {_PATIENCE_S:.0f} s: {build_it()}")
    if trial.returncode < 0:
        name = signal.Signals(-trial.returncode).name
        return BindingCheck(False, f"llama.cpp crashes on this CPU ({name}): {build_it()}")
    if trial.returncode != 0:
        reason = (trial.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return BindingCheck(False, f"llama.cpp does not start ({reason}): {start_advice(reason)}")
    speed, *described = trial.stdout.splitlines()
    return _judged(float(speed), "".join(described[:1]), described[1:])


def _judged(tokens_per_s: float, description: str, gpus: list[str]) -> BindingCheck:
    crawl = crawl_advice(tokens_per_s)
    if crawl is not None:
        return BindingCheck(False, crawl)
    text = f"llama.cpp decodes on this CPU: {tokens_per_s:,.0f} tokens/s with the built-in model"
    text = f"{text}; it finds {', '.join(gpus) or 'no GPU'}"
    return BindingCheck(True, text, tuple(machine_advice(description)))
