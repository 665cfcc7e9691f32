"""The tensors of a model file: what each takes by its type, and whether they lie where they can."""

from itertools import pairwise
from math import prod

from car_daemon.models.gguf import Header, TensorInfo
from car_daemon.models.unsound import Reason, UnsoundModel, refuse

_ALIGNMENT = 32
_ALIGNMENTS = frozenset(1 << bits for bits in range(3, 21))
_MOST = (1 << 63) - 1

# By GGML's number of a type: weights in a block, and bytes that a block takes.
_BLOCKS = {
    0: (1, 4),  # f32
    1: (1, 2),  # f16
    2: (32, 18),  # q4_0
    3: (32, 20),  # q4_1
    6: (32, 22),  # q5_0
    7: (32, 24),  # q5_1
    8: (32, 34),  # q8_0
    9: (32, 36),  # q8_1
    10: (256, 84),  # q2_k
    11: (256, 110),  # q3_k
    12: (256, 144),  # q4_k
    13: (256, 176),  # q5_k
    14: (256, 210),  # q6_k
    15: (256, 292),  # q8_k
    16: (256, 66),  # iq2_xxs
    17: (256, 74),  # iq2_xs
    18: (256, 98),  # iq3_xxs
    19: (256, 50),  # iq1_s
    20: (32, 18),  # iq4_nl
    21: (256, 110),  # iq3_s
    22: (256, 82),  # iq2_s
    23: (256, 136),  # iq4_xs
    24: (1, 1),  # i8
    25: (1, 2),  # i16
    26: (1, 4),  # i32
    27: (1, 8),  # i64
    28: (1, 8),  # f64
    29: (256, 56),  # iq1_m
    30: (1, 2),  # bf16
    34: (256, 54),  # tq1_0
    35: (256, 66),  # tq2_0
    39: (32, 17),  # mxfp4
    40: (64, 36),  # nvfp4
    41: (128, 18),  # q1_0
    42: (64, 18),  # q2_0
}
# Types of results between two steps, or of tables: a product of matrices with one of them ends the process.
_NO_WEIGHTS = frozenset({9, 15, 24, 25, 26, 27, 28})
# Tables that are named like weights.
_TABLES = (".ffn_gate_tid2eid.weight",)
# Added to and multiplied with 32-bit floats one by one; on a CPU any other type ends the process.
_SINGLE = ("norm.weight", ".bias")
_F32 = 0


def check_tensors(header: Header, size: int) -> int:
    """Return the bytes of all tensors; raises UnsoundModel where one cannot lie where the header says."""
    alignment = header.values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment not in _ALIGNMENTS:
        raise UnsoundModel(Reason.ALIGNMENT)
    start = -(-header.end // alignment) * alignment
    refuse(Reason.UNUSABLE_TYPE, when=not all(map(_is_usable, header.tensors)))
    spans = sorted((tensor.offset, tensor.offset + _bytes(tensor)) for tensor in header.tensors)
    refuse(Reason.UNALIGNED, when=any(begin % alignment for begin, _ in spans))
    refuse(Reason.OUTSIDE, when=any(start + end > size for _, end in spans))
    refuse(Reason.OVERLAP, when=any(end > after for (_, end), (after, _) in pairwise(spans)))
    return sum(end - begin for begin, end in spans)


def count_parameters(header: Header) -> int:
    """Return the weights of all tensors."""
    return sum(prod(tensor.shape) for tensor in header.tensors)


def _is_usable(tensor: TensorInfo) -> bool:
    """Tell whether llama.cpp computes with a tensor of this name in this type."""
    if tensor.name.endswith(_SINGLE):
        return tensor.type == _F32
    return tensor.type not in _NO_WEIGHTS or not tensor.name.endswith(".weight") or tensor.name.endswith(_TABLES)


def _bytes(tensor: TensorInfo) -> int:
    refuse(Reason.TENSOR_TYPE, when=tensor.type not in _BLOCKS)
    weights, taken = _BLOCKS[tensor.type]
    count = prod(tensor.shape)
    refuse(Reason.SHAPE, when=not 0 < count <= _MOST or tensor.shape[0] % weights != 0)
    return count // weights * taken
