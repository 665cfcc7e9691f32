"""The tensors of a model file: their sizes by type, and their places in the file."""

import re
from collections import Counter
from math import prod

from car_daemon.gguf.header import Header, TensorInfo
from car_daemon.gguf.invalid import Flaw, InvalidModel, refuse

_ALIGNMENT = 32
_ALIGNMENTS = frozenset(1 << bits for bits in range(3, 21))
_MOST = (1 << 63) - 1

# Weights in a block and bytes of a block, by GGML's number of the type. Types newer than this table are not refused.
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
# Types of intermediate results or of tables: llama.cpp aborts on a product of matrices with one of them.
_NO_WEIGHTS = frozenset({9, 15, 24, 25, 26, 27, 28})
# Tables with the names of weights.
_TABLES = (".ffn_gate_tid2eid.weight",)
# Added to and multiplied with 32-bit floats one by one: llama.cpp aborts on other types on a CPU.
_SINGLE = ("norm.weight", ".bias")
_F32 = 0
_LAYER = re.compile(r"blk\.([0-9]{1,9})\.")
_EXPERTS = "_exps."
_EMBEDDING = "token_embd.weight"


def check_tensors(header: Header, size: int) -> int:
    """Return the bytes of all tensors; raises InvalidModel if one cannot be at the place that the header declares.

    A tensor of an unknown type extends to the next one, or to the end of the file.
    """
    alignment = header.values.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment not in _ALIGNMENTS:
        raise InvalidModel(Flaw.ALIGNMENT)
    start = -(-header.end // alignment) * alignment
    refuse(Flaw.UNUSABLE_TYPE, when=not all(map(_is_usable, header.tensors)))
    tensors = sorted(header.tensors, key=lambda tensor: tensor.offset)
    refuse(Flaw.UNALIGNED, when=any(tensor.offset % alignment for tensor in tensors))
    limits = [*(tensor.offset for tensor in tensors), size - start][1:]
    ends = []
    for tensor, limit in zip(tensors, limits, strict=True):
        count = prod(tensor.shape)
        weights, block = _BLOCKS.get(tensor.type, (1, 1))
        refuse(Flaw.SHAPE, when=not 0 < count <= _MOST or tensor.shape[0] % weights != 0)
        known = count // weights * block
        ends.append(tensor.offset + known if tensor.type in _BLOCKS else max(tensor.offset + 1, limit))
    last = start + max(ends, default=0)
    refuse(Flaw.OUTSIDE, f"it ends at byte {last}, the file has {size}", when=bool(ends) and last > size)
    refuse(Flaw.OVERLAP, when=any(end > limit for end, limit in zip(ends, limits, strict=True)))
    return sum(end - tensor.offset for tensor, end in zip(tensors, ends, strict=True))


def count_parameters(header: Header) -> int:
    """Return the number of weights of all tensors."""
    return sum(prod(tensor.shape) for tensor in header.tensors)


def layer_weights(header: Header) -> tuple[tuple[int, int, int], ...]:
    """Return the number of each layer, its bytes, and the bytes of its experts."""
    layers: dict[int, tuple[int, int]] = {}
    for tensor in header.tensors:
        if (found := _LAYER.match(tensor.name)) is not None:
            size = _bytes_of(tensor)
            weights, experts = layers.get(int(found[1]), (0, 0))
            layers[int(found[1])] = weights + size, experts + (size if _EXPERTS in tensor.name else 0)
    return tuple((number, *sizes) for number, sizes in sorted(layers.items()))


def embedding_bytes(header: Header) -> int:
    """Return the bytes of the table of tokens."""
    return sum(_bytes_of(tensor) for tensor in header.tensors if tensor.name == _EMBEDDING)


def _bytes_of(tensor: TensorInfo) -> int:
    """Return the bytes of a tensor, 0 for a type of unknown size."""
    weights, block = _BLOCKS.get(tensor.type, (1, 0))
    return prod(tensor.shape) // weights * block


def unknown_types(header: Header) -> dict[int, int]:
    """Return the number of tensors of each unknown type, by GGML's number of the type."""
    return Counter(tensor.type for tensor in header.tensors if tensor.type not in _BLOCKS)


def _is_usable(tensor: TensorInfo) -> bool:
    """Return whether llama.cpp computes with a tensor of this name in this type; unknown types are left to it."""
    if tensor.name.endswith(_SINGLE) and tensor.type in _BLOCKS:
        return tensor.type == _F32
    return tensor.type not in _NO_WEIGHTS or not tensor.name.endswith(".weight") or tensor.name.endswith(_TABLES)
