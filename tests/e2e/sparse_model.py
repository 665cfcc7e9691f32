"""A model file of gigabytes that takes almost no disk: most of it is a hole in a table of positions."""

import os
import struct
from pathlib import Path

from tools.random_models.positions import WIDTH, generate_positions

_ROW_BYTES = WIDTH * 4
_FEW = 64


def generate_sparse(path: Path, size: int) -> None:
    """Write a model of at least this many bytes."""
    positions = size // _ROW_BYTES
    generate_positions(path, _FEW)
    header = bytearray(path.read_bytes()[: 1 << 20])
    table = header.index(name := b"position_embd.weight") + len(name)
    # After the number of dimensions and the first of them.
    struct.pack_into("<Q", header, table + 4 + 8, positions)
    trained = header.index(name := b"gpt2.context_length") + len(name)
    # After the value's type.
    struct.pack_into("<I", header, trained + 4, positions)
    with path.open("r+b") as file:
        file.write(header)
    os.truncate(path, path.stat().st_size + (positions - _FEW) * _ROW_BYTES)
