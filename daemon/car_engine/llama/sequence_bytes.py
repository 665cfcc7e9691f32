"""Memory of one sequence of a loaded model: computed where all layers attend alike, else measured."""

from contextlib import closing

from car_base.ipc.model_sizes import SequenceBytes
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel

_CELLS = 256
_STEP = 8
_TOKEN = 0


def sequence_bytes(model: LlamaModel, threads: int) -> SequenceBytes:
    """Return the bytes of one sequence; measured on a small context where layers differ or keep states."""
    if model.metadata.layers_alike and not model.keeps_states:
        return model.sequence_bytes()
    with closing(LlamaContext(model, sequences=1, context_tokens=_CELLS, threads=threads)) as context:
        if not context.generates or context.context_tokens < 2 * _STEP:
            return model.sequence_bytes()
        sizes = []  # of the saved sequence, after each of two steps
        for start in (0, _STEP):
            code = context.decode([_TOKEN] * _STEP, list(range(start, start + _STEP)), [0] * _STEP, [False] * _STEP)
            if code != 0:
                raise RuntimeError(f"llama_decode returned {code} where memory is measured")
            sizes.append(context.saved_size(0))
    per_token = (sizes[1] - sizes[0]) // _STEP
    return SequenceBytes(per_token, sizes[0] - _STEP * per_token, model.masks)
