"""The example server of llama-cpp-python, run by the interpreter in LLAMA_CPP_PYTHON."""

import os
from pathlib import Path

import msgspec

from benchmarks.generator import generate
from benchmarks.targets.case import Case
from benchmarks.targets.process import free_port, running, wait_for
from car_client.carctl.load.dialect import COMPLETIONS
from car_client.carctl.load.figures import Figures

VARIABLE = "LLAMA_CPP_PYTHON"


class BindingServer:
    """`python -m llama_cpp.server`; it takes prompts as text only, and answers one request at a time."""

    name = "llama_cpp.server"

    def __init__(self, python: Path) -> None:
        self._python = python

    def measure(self, case: Case) -> Figures:
        """Start it, run the workload, stop it."""
        port = free_port()
        flags = ("--model", case.model, "--n_ctx", str(case.context_tokens), "--port", str(port))
        # Without this a second request ends the first one's answer.
        waiting = ("--interrupt_requests", "false")
        with running([str(self._python), "-m", "llama_cpp.server", *flags, *waiting]) as process:
            wait_for(f"http://127.0.0.1:{port}/v1/models", process)
            # Of these words a random model's vocabulary makes two tokens each.
            workload = msgspec.structs.replace(case.workload, tokens_per_word=2.0)
            return generate(f"http://127.0.0.1:{port}{COMPLETIONS}", workload)


def found_binding_servers() -> list[BindingServer]:
    """Return it, or nothing where the variable is missing."""
    python = os.environ.get(VARIABLE)
    return [BindingServer(Path(python))] if python else []
