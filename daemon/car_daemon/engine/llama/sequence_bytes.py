"""How much memory the sequences of a model take."""

from contextlib import closing

from car_daemon.engine.capacity import SequenceBytes
from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.model import LlamaModel

_CELLS = 256
_STEP = 8
_TOKEN = 0


def sequence_bytes(model: LlamaModel, threads: int) -> SequenceBytes:
    """Return what one sequence takes: computed for models that attend alone, measured for those that keep states."""
    if not model.keeps_states:
        return SequenceBytes(model.kv_bytes(1))
    with closing(LlamaContext(model, sequences=1, context_tokens=_CELLS, threads=threads)) as context:
        first, second = (_saved_size(context, start) for start in (0, _STEP))
    per_token = (second - first) // _STEP
    return SequenceBytes(per_token, first - _STEP * per_token)


def _saved_size(context: LlamaContext, start: int) -> int:
    """Return what saving sequence 0 takes once it has some more tokens."""
    code = context.decode([_TOKEN] * _STEP, list(range(start, start + _STEP)), [0] * _STEP, [False] * _STEP)
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code} where memory is measured")
    return context.saved_size(0)
