"""Decode as an engine does at first: a llama.cpp that was built wrongly, or for another CPU, dies of it."""

import time

from car_daemon.engine.llama.calibration import Calibration
from car_daemon.engine.llama.library import silence
from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.sequence_bytes import sequence_bytes
from car_daemon.guide import PATH

_MEMORY_BYTES = 256 << 20
_SECONDS = 0.5


def main() -> None:
    """Return if llama.cpp can decode; a crash ends the process."""
    silence()
    model = LlamaModel(str(PATH), gpu_layers=0, progress=lambda _done: None)
    need = sequence_bytes(model, threads=2)
    Calibration(model, need, threads=2, memory_bytes=_MEMORY_BYTES, clock=time.perf_counter).measure(_SECONDS)


if __name__ == "__main__":
    main()
