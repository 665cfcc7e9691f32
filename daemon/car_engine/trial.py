"""Decode as an engine does at first: a llama.cpp that was built wrongly, or for another CPU, dies of it.

`python -m car_engine.trial MODEL` prints the tokens per second of one sequence, a line about the build, and
one for each GPU that it finds.
"""

import sys
import time

from car_engine.llama.calibration import Calibration, sequence_bytes
from car_engine.llama.devices import read_devices
from car_engine.llama.library import library_build, silence
from car_engine.llama.model import LlamaModel

_MEMORY_BYTES = 256 << 20
_SECONDS = 2.0  # far more than the plan takes on an idle machine
# Threads that wait for each other stand still on busy cores, and their speed is not that of the build.
_THREADS = 1


def main() -> None:
    """Decode at several sizes if llama.cpp can; a crash ends the process."""
    silence()
    model = LlamaModel(sys.argv[1], gpu_layers=0, progress=lambda _done: None)
    need = sequence_bytes(model, threads=_THREADS)
    trial = Calibration(model, need, threads=_THREADS, memory_bytes=_MEMORY_BYTES, clock=time.perf_counter)
    speed = 1 / min(trial.measure(_SECONDS).decode.values())
    gpus = [f"{each.name} ({each.free >> 20:,} of {each.total >> 20:,} MiB free)" for each in read_devices()]
    sys.stdout.write("\n".join([f"{speed:.0f}", library_build(), *gpus]) + "\n")


if __name__ == "__main__":
    main()
