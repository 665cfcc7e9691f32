"""The folder of model files that mean harm; the same seed writes the same files."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from gguf import GGUFReader

from tools.hostile_models.mutations import mutate
from tools.hostile_models.templates import TEMPLATES
from tools.hostile_models.values import hostile_values, text, with_value
from tools.random_models.llama import generate
from tools.random_models.positions import generate_positions
from tools.random_models.recurrent import generate_recurrent

_KEY = "tokenizer.chat_template"


class Base(NamedTuple):
    """A sound model, where its weights begin, and what its header says of it."""

    data: bytes
    header: int
    architecture: str
    tokens: int


def bases(folder: Path) -> list[Base]:
    """Return small models of three architectures."""
    path = folder / "base.gguf"
    found = []
    for write in (_write_llama, _write_gpt2, generate_recurrent):
        write(path)
        reader = GGUFReader(path)
        architecture = str(reader.fields["general.architecture"].contents())
        tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
        found.append(Base(path.read_bytes(), reader.data_offset, architecture, tokens))
    path.unlink()
    return found


def _write_llama(path: Path) -> None:
    generate(path, "tiny", "q8_0")


def _write_gpt2(path: Path) -> None:
    generate_positions(path, 256)


def with_template(base: Base, template: str) -> bytes:
    """Return a model with another chat template in its file."""
    return with_value(base.data, _KEY, text(template))


def hostile_files(folder: Path, *, templates: int, headers: int, values: int, cuts: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents: models with the templates, with damaged headers, with other values, and cut short."""
    sound = bases(folder)
    step = len(TEMPLATES) / max(1, templates)
    chosen = [list(TEMPLATES.values())[int(number * step)] for number in range(templates)]
    for number, template in enumerate(chosen):
        yield f"template-{number:02}", with_template(sound[0], template)
    for number in range(headers):
        base = sound[number % len(sound)]
        yield f"header-{number:04}", mutate(base.data, base.header, number)
    changes = [(base, *change) for base in sound for change in hostile_values(base.architecture, base.tokens)]
    for number, (base, key, value) in enumerate(Random(0).sample(changes, min(values, len(changes)))):
        yield f"value-{number:03}", with_value(base.data, key, value)
    for number in range(cuts):
        base = sound[number % len(sound)]
        end = Random(number).randrange(1, base.header if number % 2 else len(base.data))
        yield f"cut-{number:02}", base.data[:end]
