"""`card --check`: whether the installed llama.cpp can decode on this machine, tried in a process of its own."""

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from car_daemon.engines.binding_advice import build_it, crawl_advice, machine_advice, start_advice

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
        # This Python and a module of this package, without a shell.
        trial = subprocess.run(  # noqa: S603
            [sys.executable, "-m", module, model], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
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
