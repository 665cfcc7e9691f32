"""The draft model of an engine: another entry's file, which guesses tokens in a context of its own."""

import time
from collections.abc import Callable
from functools import cached_property

from msgspec import structs

from car_daemon.capacity.capacity import SequenceBytes
from car_daemon.capacity.curve import Curve
from car_daemon.engine.backend import Backend
from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.drafter import Drafter
from car_daemon.engine.llama.calibration import Calibration
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.model import LlamaModel, ModelError
from car_daemon.engine.llama.sequence_bytes import sequence_bytes
from car_daemon.engine.llama.tokens import Vocabulary
from car_daemon.engine.sizing import curve_file_of
from car_daemon.host.memory import read_memory
from car_daemon.ipc.frames import DraftFile, Load

# Time of the calibration, once per model, device and number of threads, and its share of the free memory.
_CALIBRATION_S = 0.5
_CALIBRATION_SHARE = 0.1


class DraftModel:
    """A loaded draft model; raises ModelError for one that cannot guess for its model.

    All of it is on the GPUs where any layer of its model is, else on the host.
    """

    def __init__(self, load: Load, file: DraftFile, backend: Backend, *, on_gpu: bool) -> None:
        self._backend = backend
        self._context: LlamaContext | None = None
        self._load = structs.replace(load, path=file.path, gpu_layers=-1 if on_gpu else 0, sizes=None)
        self._name = file.name
        try:
            self._model: LlamaModel = backend.open_model(self._load, lambda _: None, None)
        except ModelError as error:
            raise ModelError(f"the draft model {file.name}: {error}") from None

    def allocate(self, sequences: int, context_tokens: int, *, threads: int) -> None:
        """Take the memory of a context with the sequences of its model's; raises ModelError."""
        self._context = self._backend.open_context(
            self._model, sequences=sequences, context_tokens=context_tokens, threads=threads
        )

    def close(self) -> None:
        """Free all memory."""
        if self._context is not None:
            self._context.close()
        self._model.close()

    def check(self, vocabulary: Vocabulary) -> None:
        """Raise ModelError unless the draft has the tokens of its model, whose vocabulary this is."""
        difference = Vocabulary(self._model).difference(vocabulary)
        if difference is not None:
            remedy = "name an entry with the same vocabulary"
            raise ModelError(f"the draft model {self._name} cannot guess for this model: {difference}; {remedy}")

    @cached_property
    def sequence_bytes(self) -> SequenceBytes:
        """The memory of one sequence of the draft."""
        return sequence_bytes(self._model, 1)

    def drafter(self, sequences: int, threads: int) -> tuple[Drafter, list[Callable[[int], None]]]:
        """Return what guesses for so many sequences, and the parts that follow the number of threads."""
        curve, context = self._curve(threads), self._context
        if context is None or not context.generates or not context.can_cut_tails():
            raise ModelError(
                f"the draft model {self._name} cannot take back tokens: name an entry with attention in all layers"
            )
        costs = StepCosts(curve.decode, curve.prefill, threads)
        return Drafter(context, costs, sequences, time.perf_counter), [context.set_threads, costs.set_threads]

    def _curve(self, threads: int) -> Curve:
        """Return the measured costs of the draft's steps."""
        memory_bytes = int(read_memory().available * _CALIBRATION_SHARE)
        calibration = Calibration(
            self._model, self.sequence_bytes, threads=threads, memory_bytes=memory_bytes, clock=time.perf_counter
        )
        load = self._load
        kept = curve_file_of(load, threads, str(load.gpu_layers) if load.gpu_layers else "")
        return kept.remembered(lambda: calibration.measure(_CALIBRATION_S))
