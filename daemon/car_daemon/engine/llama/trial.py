"""Measures a cost curve on a small context, before the real one is made."""

from collections.abc import Callable

from car_daemon.engine.capacity import SequenceBytes
from car_daemon.engine.curve import Curve
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.model import LlamaModel

# In this order, as far as the time goes: what decides most comes first.
_PLAN = (
    *(("decode", 1), ("decode", 8), ("prefill", 16), ("decode", 16), ("prefill", 64)),
    *(("decode", 4), ("decode", 2), ("decode", 32), ("prefill", 256)),
)
_CELLS = 256
_REPEATS = 2
_TOKEN = 0


class Trial:
    """A context of up to 32 sequences of 256 cells; times in seconds of `clock`."""

    def __init__(
        self, model: LlamaModel, need: SequenceBytes, *, threads: int, memory_bytes: int, clock: Callable[[], float]
    ) -> None:
        affordable = memory_bytes // max(1, need.of(_CELLS))
        most = max(size for kind, size in _PLAN if kind == "decode")
        sequences = max(1, min(most, affordable, model.traits.most_sequences))
        self._clock = clock
        self._context = LlamaContext(model, sequences=sequences, context_tokens=_CELLS, threads=threads)

    def measure(self, budget: float) -> Curve:
        """Measure what fits into about `budget` seconds, and free the context."""
        seconds: dict[str, dict[int, float]] = {"decode": {}, "prefill": {}}
        started = self._clock()
        self._once("decode", 1)
        for kind, size in _PLAN:
            left = budget - (self._clock() - started)
            if self._possible(kind, size) and self._expected(seconds[kind], size) * (_REPEATS + 1) <= left:
                seconds[kind][size] = min(self._once(kind, size) for _ in range(_REPEATS + 1))
        self._context.close()
        return Curve(**seconds)

    def _possible(self, kind: str, size: int) -> bool:
        # A prompt of all cells of a sequence still has to leave one.
        return size <= self._context.sequences if kind == "decode" else size < self._context.context_tokens + 1

    def _expected(self, known: dict[int, float], size: int) -> float:
        """Return what a size costs at most, by the largest smaller one: steps never cost more than in proportion."""
        smaller = max((one for one in known if one <= size), default=None)
        return known[smaller] * size / smaller if smaller else 0.0

    def _once(self, kind: str, size: int) -> float:
        rows = range(size)
        numbers = list(rows) if kind == "decode" else [0] * size
        positions = [0] * size if kind == "decode" else list(rows)
        outputs = [kind == "decode" or row == size - 1 for row in rows]
        started = self._clock()
        code = self._context.decode([_TOKEN] * size, positions, numbers, outputs)
        self._context.synchronize()
        seconds = self._clock() - started
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} in the trial")
        for number in set(numbers):
            self._context.cut(number, 0)
        return seconds
