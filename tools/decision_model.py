"""Copies of a model that decide in the words of a family: keys are added to the file's header, and no weight changes.

The weights were not trained for it: such a copy shows that a family is asked and read as it should be.
"""

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

_HEADER = struct.Struct("<4sIQQ")  # the magic, the version, the number of tensors, the number of keys
_FLOAT, _TEXT = 6, 8
# Tensors begin at multiples of 32 bytes: if all that is added is a multiple, the rest of the file follows as it is.
_ALIGNMENT = 32
_FILLER = "general.filler"


def write_decision_model(
    model: Path, copy: Path, *, architecture: str, family: str, template: str, temperatures: Mapping[str, float]
) -> None:
    """Write a copy of a model that is of a family, with its template and its temperatures by type of question."""
    texts = {f"{architecture}.decision.type": family, "tokenizer.chat_template.systemone": template}
    keys = [_key(name, _TEXT) + _text(text) for name, text in texts.items()]
    for kind, value in temperatures.items():
        keys.append(_key(f"{architecture}.decision.temperature.{kind}", _FLOAT) + struct.pack("<f", value))
    added = b"".join(keys) + _key(_FILLER, _TEXT)
    added += _text(" " * (-(len(added) + len(_text(""))) % _ALIGNMENT))
    with model.open("rb") as source, copy.open("wb") as target:
        magic, version, tensors, count = _HEADER.unpack(source.read(_HEADER.size))
        target.write(_HEADER.pack(magic, version, tensors, count + len(keys) + 1) + added)
        shutil.copyfileobj(source, target, 1 << 20)


def _key(name: str, kind: int) -> bytes:
    return _text(name) + struct.pack("<I", kind)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
