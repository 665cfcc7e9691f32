"""A draft model on and off: one whose guesses come true, and one whose guesses seldom do.

`python -m benchmarks.drafts [--times 4] [--turns 8] [--tokens 24] [--streams 1]` prints tokens a second, in turn in one
run. No small model of SmolLM2's vocabulary is at hand, so a large one is made of it: with further layers that add
nothing to what passes through them, it takes several times as long and writes the same. SmolLM2 guesses for it as a
perfect small model would, and its first layers alone as one that is nearly always wrong. So the first figure is the
most that a draft can bring at this ratio of costs.
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import uvloop

from benchmarks.guesses import FREE, rate
from benchmarks.models import OUT, model_file
from benchmarks.report import Report
from benchmarks.targets.card import serving
from car_client import AsyncClient

FIRST_LAYERS = 2
TEXTS = tuple(FREE.values())[:4]
CONTEXT_TOKENS = 1024
# What a layer adds to its input goes through these.
_OUTPUTS = ("attn_output.weight", "ffn_down.weight")
_BLOCK, _LAYERS, _ARCHITECTURE = "blk.", "llama.block_count", "general.architecture"


class Entry(NamedTuple):
    """A configured model: its file, and the entry that drafts for it."""

    name: str
    path: Path
    draft: str = ""

    def __str__(self) -> str:
        draft = f'draft = "{self.draft}"\n' if self.draft else ""
        return f'[models.{self.name}]\npath = "{self.path}"\n{draft}'


def with_layers(source: Path, layers: int) -> Path:
    """Return the model with its first layers alone, or with further ones that add nothing; makes it where missing."""
    path = OUT / f"{source.stem}-{layers}-layers.gguf"
    if path.exists():
        return path
    OUT.mkdir(exist_ok=True)
    reader, draft = gguf.GGUFReader(source), path.with_suffix(".part")
    writer = gguf.GGUFWriter(draft, reader.fields[_ARCHITECTURE].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != _ARCHITECTURE:
            kind, *parts = field.types
            value = layers if name == _LAYERS else field.contents()
            writer.add_key_value(name, value, kind, parts[-1] if parts else None)
    own = reader.fields[_LAYERS].contents()
    for tensor in reader.tensors:
        for name in _copies(tensor.name, own, layers):
            added = name != tensor.name and name.endswith(_OUTPUTS)
            weights = np.zeros_like(tensor.data) if added else tensor.data
            writer.add_tensor(name, weights, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.rename(path)
    return path


def _copies(name: str, own: int, layers: int) -> list[str]:
    """Return the names under which a tensor is written: the layers that are added are copies of the first."""
    if not name.startswith(_BLOCK):
        return [name]
    number, rest = name.removeprefix(_BLOCK).split(".", 1)
    added = range(own, layers) if number == "0" else ()
    return [f"{_BLOCK}{each}.{rest}" for each in (int(number), *added) if each < layers]


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--times", type=int, default=4, help="layers of the large model, by SmolLM2's")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer; short ones are nearer in time")
    parser.add_argument("--streams", type=int, default=1)
    given = parser.parse_args()
    report = Report("drafts")
    small = model_file("smollm2")
    large = with_layers(small, given.times * gguf.GGUFReader(small).fields[_LAYERS].contents())
    entries = (
        Entry("alone", large),
        Entry("right", large, "small"),
        Entry("wrong", large, "first"),
        Entry("small", small),
        Entry("first", with_layers(small, FIRST_LAYERS)),
    )
    size = f"sequences = {given.streams}\ncontext_tokens = {CONTEXT_TOKENS}\npinned = true\n"
    config = "".join(f"{entry}{size}" for entry in entries[:3]) + "".join(map(str, entries[3:]))
    with serving(Path("alone"), config=config) as socket:
        uvloop.run(_measured(str(socket), given, report))
    report.close()


async def _measured(address: str, given: argparse.Namespace, report: Report) -> None:
    """Let the models take turns with each text, every other turn backwards; the first turn only warms up."""
    rates: dict[str, list[float]] = {"alone": [], "right": [], "wrong": []}
    streams = given.streams
    async with AsyncClient(address) as client:
        for turn in range(given.turns + 1):
            for text in TEXTS:
                for model in rates if turn % 2 else reversed(rates):
                    found = await rate(client, model, text, streams, given.tokens)
                    rates[model] += [found] if turn else []
        engines = {model.name: model.engines[0] for model in (await client.status()).models if model.engines}
    report.say(f"{streams} streams, no draft: tokens/s", statistics.median(rates["alone"]))
    for model in ("right", "wrong"):
        ratios = [mine / alone for mine, alone in zip(rates[model], rates["alone"], strict=True)]
        report.say(f"{streams} streams, guesses mostly {model}, of no draft: median", statistics.median(ratios))
        tried, right = engines[model].draft_tried or 0, engines[model].draft_right or 0
        report.say("  guesses of the draft that were tried, and right", tried, right)


if __name__ == "__main__":
    main()
