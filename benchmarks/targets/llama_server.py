"""llama.cpp's own server, at the path in LLAMA_SERVER."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.comparison import Case, Measure
from benchmarks.generator import generate
from benchmarks.targets.process import free_port, running, wait_for
from car_client.carctl.bench.completions import COMPLETION

VARIABLE = "LLAMA_SERVER"


class LlamaServer:
    """One way to start it: slots with a KV part of their own each, slots that share one, or as it comes."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._mode = mode
        self.name = f"llama-server, {mode}"

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run it with as many slots as the case has sequences."""
        with self.serving(case.model, case.sequences, case.context_tokens) as address:
            yield partial(generate, address)

    @contextmanager
    def serving(self, model: str, sequences: int, context_tokens: int, *more: str) -> Iterator[str]:
        """Run it with `more` options for the length of a block, ready to answer; yields the URL of its completions."""
        port = free_port()
        flags = ("--model", model, "--host", "127.0.0.1", "--port", str(port), "--log-disable")
        slots = () if self._mode == "as it comes" else self._slots(sequences, context_tokens)
        with running([str(self._path), *flags, *slots, *more]) as process:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}{COMPLETION}"

    def _slots(self, sequences: int, context_tokens: int) -> tuple[str, ...]:
        shared = "--kv-unified" if self._mode == "unified" else "--no-kv-unified"
        return (shared, "--parallel", str(sequences), "--ctx-size", str(sequences * context_tokens))


def found_llama_servers(modes: tuple[str, ...] = ("split", "unified", "as it comes")) -> list[LlamaServer]:
    """Return one for each mode, none if the variable is missing."""
    path = os.environ.get(VARIABLE)
    return [LlamaServer(Path(path), mode) for mode in modes] if path else []
