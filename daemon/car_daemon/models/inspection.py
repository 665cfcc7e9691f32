"""The abilities, contents and memory of models by the headers of their files; a load does not use this."""

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from car_base.capacity.capacity import CapacityInputs, estimate_capacity
from car_base.capacity.curve import Curve
from car_base.host.devices import CPU
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.template_syntax import abilities_of, style_of, tags_of
from car_daemon.gguf.invalid import InvalidModel
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_estimate import MemoryEstimate, cells_of, estimate_memory
from car_daemon.models.model_files import check_files
from car_daemon.models.settings import ModelSettings
from car_protocol.models import ArraySize, Estimate, ModelFile

if TYPE_CHECKING:
    from car_daemon.gguf.header import BoundedReader, Value
    from car_daemon.gguf.validation import HeaderFacts

TEMPLATE = "tokenizer.chat_template"
_DECISION_TEMPLATE = f"{TEMPLATE}.systemone"
# Templates of published models have up to some ten thousand bytes.
TEMPLATE_BYTES = 1 << 17
# Families of models with a decision template of their own that are read at labels.
_DECIDING = frozenset({"openjev", "lev", "nimble"})
_RANKS = 4  # llama.cpp's number of that pooling
# Architectures without a cache of cells, beside all of the BERT family.
_CACHELESS = frozenset({"gemma-embedding"})
# The tokens before, after and in place of the missing middle: their keys, and the texts by which llama.cpp finds them.
_FILL: dict[tuple[str, ...], frozenset[bytes]] = {
    keys: frozenset(text.encode() for text in texts)
    for keys, texts in {
        ("fim_pre", "prefix"): (
            *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),  # noqa: RUF001 - as models spell it
            "<|code_prefix|>",
        ),
        ("fim_suf", "suffix"): (
            *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),  # noqa: RUF001 - as models spell it
            "<|code_suffix|>",
        ),
        ("fim_mid", "middle"): (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),  # noqa: RUF001 - as models spell it
            "<|code_middle|>",
        ),
    }.items()
}
_PROJECTED = {"clip.has_vision_encoder": "images", "clip.has_audio_encoder": "audio"}
# A file's path, size and time, and what else decides.
_Stamp = tuple[object, ...]


class Abilities:
    """The abilities of all models; a header is read again once its file has changed."""

    def __init__(self, read: Callable[[ModelSettings], list[str]] | None = None) -> None:
        self._read = read or read_abilities
        self._found: dict[str, tuple[_Stamp, list[str]]] = {}  # by model

    def __repr__(self) -> str:
        return f"<Abilities of {len(self._found)} models that are not loaded>"

    def of(self, entry: ModelEntry) -> list[str]:
        """Return a model's abilities: its engine's, else the abilities by its header; empty until that was read."""
        if entry.replicas.ready is not None:
            return entry.replicas.ready.can
        return self._found.get(entry.name, ((), []))[1]

    def unread(self, entries: Iterable[ModelEntry]) -> list[ModelEntry]:
        """Return the models without an engine whose headers have to be read."""
        waiting = [entry for entry in entries if entry.replicas.ready is None]
        return [entry for entry in waiting if self._found.get(entry.name, ((), []))[0] != _stamp(entry.configured)]

    async def look(self, entries: Iterable[ModelEntry]) -> None:
        """Read the headers of models, if that is needed, in a thread; a file that is not a model can do nothing."""
        for entry in self.unread(entries):
            stamp = _stamp(entry.configured)
            try:
                found = await asyncio.to_thread(self._read, entry.configured)
            except (InvalidModel, OSError):
                found = []
            self._found[entry.name] = stamp, found


def read_abilities(settings: ModelSettings) -> list[str]:
    """Return what a model of these files can; raises InvalidModel or OSError."""
    from car_daemon.gguf.header import BoundedReader, read_header
    from car_daemon.gguf.validation import check_served, open_file

    with open_file(settings.path) as file:
        reader = BoundedReader(file, os.fstat(file.fileno()).st_size)
        values = read_header(reader, {TEMPLATE: TEMPLATE_BYTES}).values
        architecture = str(values.get("general.architecture", ""))
        check_served(architecture)
        embeds = "rerank" if values.get(f"{architecture}.pooling_type") == _RANKS else "embed"
        if "bert" in architecture or architecture in _CACHELESS:
            return [embeds]
        template = template_of(settings, values.get(TEMPLATE))
        chats = [] if template is None else ["chat", *_projected(settings)]
        fills = ["fill"] if _fills(reader, values) else []
        family = values.get(f"{architecture}.decision.type")
        decides = bool(chats) if family is None else family in _DECIDING and _DECISION_TEMPLATE in values
        return [
            "generate",
            *chats,
            *abilities_of(template or "", settings.tool_style, settings.thinking_tags),
            *fills,
            *(["decide"] if decides else []),
            embeds,
        ]


def _projected(settings: ModelSettings) -> list[str]:
    """Return the kinds of parts that a model's projector takes, by its header."""
    from car_daemon.gguf.header import BoundedReader, read_header
    from car_daemon.gguf.validation import open_file

    if settings.projector is None:
        return []
    with open_file(settings.projector) as file:
        values = read_header(BoundedReader(file, os.fstat(file.fileno()).st_size)).values
    return [can for key, can in _PROJECTED.items() if values.get(key) is True]


def template_of(settings: ModelSettings, own: "Value | None") -> str | None:
    """Return the beginning of a model's chat template: the configured one, which replaces its own."""
    if settings.chat_template is not None:
        with settings.chat_template.open(encoding="utf-8", errors="replace") as text:
            return text.read(TEMPLATE_BYTES) or None
    return own if isinstance(own, str) else None


def _fills(reader: "BoundedReader", values: "Mapping[str, Value]") -> bool:
    from car_daemon.gguf.header import Array

    missing = {
        keys: texts
        for keys, texts in _FILL.items()
        if not any(f"tokenizer.ggml.{key}_token_id" in values for key in keys)
    }
    tokens = values.get("tokenizer.ggml.tokens")
    if not missing or not isinstance(tokens, Array) or tokens.code != "s":
        return not missing
    reader.go_to(tokens.start)
    for words in reader.strings(tokens.count):
        found = [keys for keys, texts in missing.items() if not texts.isdisjoint(words)]
        for keys in found:
            del missing[keys]
        if not missing:
            return True
    return False


def _stamp(settings: ModelSettings) -> _Stamp:
    beside = settings.path, settings.chat_template, settings.projector
    return tuple((path, *_identity(path)) for path in beside if path is not None)


def _identity(path: Path) -> tuple[int, int] | tuple[()]:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return ()
    return stat.st_size, stat.st_mtime_ns


# Published models have some dozens of keys.
_KEYS = 256


class Inspected(Struct, frozen=True):
    """The contents of a valid model's files, and the host memory of one replica with no layer on a GPU."""

    file: ModelFile
    first: "HeaderFacts"
    cells: SequenceBytes
    estimate: MemoryEstimate


def inspect(settings: ModelSettings) -> Inspected:
    """Read the headers; raises InvalidModel."""
    from car_daemon.gguf.header import BoundedReader, read_header
    from car_daemon.gguf.validation import open_file

    facts = check_files(settings)
    first = facts[0]
    with open_file(settings.path) as file:
        reader = BoundedReader(file, os.fstat(file.fileno()).st_size)
        values = dict(read_header(reader, {TEMPLATE: TEMPLATE_BYTES}).values)
    template = template_of(settings, values.pop(TEMPLATE, None))
    return Inspected(
        ModelFile(
            architecture=first.architecture,
            parameters=sum(each.parameters for each in facts),
            file_type=first.file_type,
            context_length=first.context_length,
            embedding_length=first.embedding_length,
            block_count=first.block_count,
            vocabulary=first.vocabulary,
            memory=first.memory,
            unused_layers=first.unused_layers,
            parts=first.parts,
            warnings=[warning for each in facts for warning in each.warnings],
            chat_template=template,
            tool_style=settings.tool_style or style_of(template or ""),
            thinking_tags=list(settings.thinking_tags or tags_of(template or "") or ()) or None,
            metadata={key: _plain(value) for key, value in list(values.items())[:_KEYS]},
        ),
        first,
        cells_of(first, settings),
        estimate_memory(facts, structs.replace(settings, gpu_layers=0, devices=(), replicas=1)),
    )


def estimated(entry: ModelEntry, inspected: Inspected, free_bytes: int) -> Estimate:
    """Return the memory of each replica of a model, and the number of sequences in its part of the free memory."""
    settings, estimate = settings_of(entry), inspected.estimate
    left = free_bytes // len(settings.places) - estimate.weights - estimate.others - settings.reserve_bytes
    inputs = CapacityInputs(
        sequence_bytes=inspected.cells,
        free_bytes=max(0, left),
        total_bytes=0,
        trained_context=max(1, inspected.first.context_length),
        policy=settings.policy,
        curve=Curve({}, {}),
        max_itl=0.0,
        context_tokens=entry.replicas.ready.context_tokens
        if entry.replicas.ready is not None
        else settings.context_tokens,
        sequences=settings.sequences,
        most_tokens=inspected.first.most_tokens,
    )
    found = estimate_capacity(inputs)
    on_host = set(settings.places) == {CPU}
    kv_bytes = inputs.sequence_bytes.of(found.context_tokens)
    fits = left >= kv_bytes + inputs.sequence_bytes.mask(found.context_tokens)
    return Estimate(
        weights_bytes=estimate.weights,
        other_bytes=estimate.others,
        context_tokens=found.context_tokens,
        kv_bytes_per_sequence=kv_bytes,
        free_bytes=free_bytes,
        sequences=(found.sequences if fits else 0) if on_host else None,
        most_sequences=(found.most_sequences if fits else 0) if on_host else None,
        kv_type=settings.kv_type,
        offers=list(found.offers) if on_host else [],
    )


def settings_of(entry: ModelEntry) -> ModelSettings:
    """Return the settings that a model is served with or, if it is not served, that it will be loaded with."""
    return entry.configured if entry.replicas.ready is None else entry.settings


def _plain(value: "Value") -> bool | int | float | str | ArraySize:
    """Return a value as JSON can express it."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return ArraySize(value.count)
