"""The example server of llama-cpp-python, run by the interpreter in LLAMA_CPP_PYTHON."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.generator import generate
from benchmarks.targets.case import Case, Measure
from benchmarks.targets.process import free_port, running, wait_for
from car_client.carctl.load.figures import Figures
from car_client.carctl.load.http.dialect import COMPLETIONS
from car_client.carctl.load.workload import Workload

VARIABLE = "LLAMA_CPP_PYTHON"


class BindingServer:
    """`python -m llama_cpp.server`; it takes prompts as text only, and answers one request at a time."""

    name = "llama_cpp.server"

    def __init__(self, python: Path) -> None:
        self._python = python

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run it with the context of one sequence."""
        port = free_port()
        flags = ("--model", case.model, "--n_ctx", str(case.context_tokens), "--port", str(port))
        # Without this a second request ends the first one's answer.
        waiting = ("--interrupt_requests", "false")
        with running([str(self._python), "-m", "llama_cpp.server", *flags, *waiting]) as process:
            wait_for(f"http://127.0.0.1:{port}/v1/models", process)
            yield partial(_in_words, f"http://127.0.0.1:{port}{COMPLETIONS}")


def _in_words(address: str, workload: Workload) -> Figures:
    """Run a workload with prompts of words, of which a random model's vocabulary makes two tokens each."""
    return generate(address, msgspec.structs.replace(workload, tokens_per_word=2.0))


def found_binding_servers() -> list[BindingServer]:
    """Return it, or nothing where the variable is missing."""
    python = os.environ.get(VARIABLE)
    return [BindingServer(Path(python))] if python else []
