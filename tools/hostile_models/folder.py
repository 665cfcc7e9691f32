"""The folder of model files that mean harm; the same seed writes the same files."""

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from gguf import GGUFReader

from tools.hostile_models.mutations import mutate
from tools.hostile_models.templates import TEMPLATES
from tools.random_models.llama import generate
from tools.random_models.positions import generate_positions
from tools.random_models.recurrent import generate_recurrent

_KEY = b"tokenizer.chat_template"
_STRING = 8
_ALIGNMENT = 32
# After magic, version and the number of tensors.
_KEYS_AT = 16
_PAIRS_AT = 24


class Base(NamedTuple):
    """A sound model, and where its weights begin."""

    data: bytes
    header: int


def bases(folder: Path) -> list[Base]:
    """Return small models of three architectures."""
    path = folder / "base.gguf"
    found = []
    for write in (_write_llama, _write_gpt2, generate_recurrent):
        write(path)
        start = GGUFReader(path).data_offset
        found.append(Base(path.read_bytes(), start))
    path.unlink()
    return found


def _write_llama(path: Path) -> None:
    generate(path, "tiny", "q8_0")


def _write_gpt2(path: Path) -> None:
    generate_positions(path, 256)


def with_template(base: Base, template: str) -> bytes:
    """Return a model with another chat template in its file; spaces keep its weights aligned."""
    data = base.data.replace(_KEY, _KEY[:-1] + b"_")
    head = struct.pack("<Q", len(_KEY)) + _KEY + struct.pack("<I", _STRING)
    text = template.encode()
    text += b" " * (-(len(head) + 8 + len(text)) % _ALIGNMENT)
    (keys,) = struct.unpack_from("<Q", data, _KEYS_AT)
    pair = head + struct.pack("<Q", len(text)) + text
    return data[:_KEYS_AT] + struct.pack("<Q", keys + 1) + pair + data[_PAIRS_AT:]


def hostile_files(folder: Path, *, templates: int, headers: int, cuts: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents: models with the templates, with damaged headers, and cut short."""
    sound = bases(folder)
    step = len(TEMPLATES) / max(1, templates)
    chosen = [list(TEMPLATES.values())[int(number * step)] for number in range(templates)]
    for number, template in enumerate(chosen):
        yield f"template-{number:02}", with_template(sound[0], template)
    for number in range(headers):
        base = sound[number % len(sound)]
        yield f"header-{number:04}", mutate(base.data, base.header, number)
    for number in range(cuts):
        base = sound[number % len(sound)]
        end = Random(number).randrange(1, base.header if number % 2 else len(base.data))
        yield f"cut-{number:02}", base.data[:end]
