"""Loads every model in a folder, each in a process of its own, and prints its name and how that process ended."""

import os
import signal
import sys
from pathlib import Path

from car_engine.llama.library import silence
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.tokens import Vocabulary

_SECONDS = 20
_REFUSED = 1


def load(path: Path) -> int:
    """Load a model and its vocabulary; return 0, or 1 where llama.cpp refuses it."""
    signal.alarm(_SECONDS)
    try:
        Vocabulary(LlamaModel(str(path), gpu_layers=0, progress=lambda _: None))
    except ModelError:
        return _REFUSED
    return 0


def load_apart(path: Path) -> int:
    """Load a model in a child; return its exit status, negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        os._exit(load(path))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Load the models in the folder that is given."""
    silence()
    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(path.name, load_apart(path), flush=True)


if __name__ == "__main__":
    main()
