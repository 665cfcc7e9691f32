"""`card --check`: whether the installed llama.cpp can decode on this machine, tried in a process of its own."""

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# The guide decodes at 12,000 tokens/s on two cores of a small server; a build without optimization or vector
# instructions stays far below this.
LEAST_TOKENS_PER_S = 500.0
_PATIENCE_S = 60.0
_BINDING = "llama_cpp"
_INSTALL = "install it with: pip install 'card-daemon[daemon]' (needs a C++ compiler, such as g++, and some minutes)"
_REBUILD = (
    "build it on this machine: pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python, or in a checkout: make rebuild"
)


class BindingCheck(NamedTuple):
    """Whether llama.cpp works here, and a line for the user."""

    works: bool
    text: str


def check_binding(model: Path, module: str = "car_daemon.engine.trial") -> BindingCheck:
    """Run the trial with a small model; its crash, its silence and its crawl are told with what to do."""
    if importlib.util.find_spec(_BINDING) is None:
        return BindingCheck(False, f"llama-cpp-python is not installed: {_INSTALL}")
    try:
        # This Python and a module of this package, without a shell.
        trial = subprocess.run(  # noqa: S603
            [sys.executable, "-m", module, model], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return BindingCheck(False, f"llama.cpp decoded nothing within {_PATIENCE_S:.0f} s: {_REBUILD}")
    if trial.returncode < 0:
        name = signal.Signals(-trial.returncode).name
        return BindingCheck(False, f"llama.cpp crashes on this CPU ({name}): {_REBUILD}")
    if trial.returncode != 0:
        reason = (trial.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return BindingCheck(False, f"llama.cpp does not start ({reason}): {_REBUILD}")
    return _judged(float(trial.stdout))


def _judged(tokens_per_s: float) -> BindingCheck:
    if tokens_per_s < LEAST_TOKENS_PER_S:
        figures = f"{tokens_per_s:.0f} tokens/s with the built-in model, where {LEAST_TOKENS_PER_S:.0f} are the least"
        return BindingCheck(False, f"llama.cpp crawls on this CPU ({figures}): {_REBUILD}")
    return BindingCheck(True, f"llama.cpp decodes on this CPU: {tokens_per_s:,.0f} tokens/s with the built-in model")
