"""What is in a model's files and what they would take, by their headers; read for who asks, not for loading."""

import math
import os
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from car_daemon.devices import CPU
from car_daemon.engine.capacity import Need, SequenceBytes, fitting
from car_daemon.engine.curve import Curve
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.footprint import Footprint, estimate
from car_daemon.models.parts import check_files
from car_protocol.models import ArraySize, Estimate, ModelFile

if TYPE_CHECKING:
    from car_daemon.models.gguf import Value
    from car_daemon.models.soundness import Facts

_TEMPLATE = "tokenizer.chat_template"
# Templates of published models have up to some ten thousand bytes, and headers some dozens of keys.
_TEMPLATE_BYTES = 1 << 17
_KEYS = 256


class Inspected(Struct, frozen=True):
    """The files of a sound model: what they hold, and what one replica takes of the host with no layer on a GPU."""

    file: ModelFile
    first: "Facts"
    footprint: Footprint


def inspect(settings: ModelSettings) -> Inspected:
    """Read the headers; raises UnsoundModel."""
    facts = check_files(settings)
    first = facts[0]
    values = _values(settings)
    template = values.pop(_TEMPLATE, None)
    return Inspected(
        ModelFile(
            architecture=first.architecture,
            parameters=sum(each.parameters for each in facts),
            file_type=first.file_type,
            context_length=first.context_length,
            embedding_length=first.embedding_length,
            block_count=first.block_count,
            vocabulary=first.vocabulary,
            parts=first.parts,
            chat_template=_given_template(settings) or (template if isinstance(template, str) else None),
            metadata={key: _plain(value) for key, value in list(values.items())[:_KEYS]},
        ),
        first,
        estimate(facts, structs.replace(settings, gpu_layers=0, devices=(), replicas=1)),
    )


def estimated(entry: ModelEntry, inspected: Inspected, free_bytes: int) -> Estimate:
    """Return what each replica of a model takes, and how many sequences fit into its part of what is free."""
    settings, footprint = settings_of(entry), inspected.footprint
    left = free_bytes // len(settings.places) - footprint.weights - footprint.others - settings.reserve_bytes
    need = Need(
        sequence_bytes=SequenceBytes(inspected.first.kv_bytes_per_token, inspected.first.state_bytes),
        free_bytes=max(0, left),
        total_bytes=0,
        trained_context=max(1, inspected.first.context_length),
        policy=settings.policy,
        curve=Curve({}, {}),
        max_itl=0.0,
        context_tokens=entry.ready.context_tokens if entry.ready is not None else settings.context_tokens,
        most_tokens=inspected.first.most_tokens,
    )
    found = fitting(need)
    on_host = set(settings.places) == {CPU}
    kv_bytes = need.sequence_bytes.of(found.context_tokens)
    fits = left >= kv_bytes
    return Estimate(
        weights_bytes=footprint.weights,
        other_bytes=footprint.others,
        context_tokens=found.context_tokens,
        kv_bytes_per_sequence=kv_bytes,
        free_bytes=free_bytes,
        sequences=(found.sequences if fits else 0) if on_host else None,
        most_sequences=(found.most_sequences if fits else 0) if on_host else None,
    )


def settings_of(entry: ModelEntry) -> ModelSettings:
    """Return what a model is served with or, where it is not, what it will be loaded with."""
    return entry.configured if entry.ready is None else entry.settings


def _values(settings: ModelSettings) -> "dict[str, Value]":
    from car_daemon.models.cursor import Cursor
    from car_daemon.models.gguf import read_header
    from car_daemon.models.soundness import open_file

    with open_file(settings.path) as file:
        cursor = Cursor(file, os.fstat(file.fileno()).st_size)
        return dict(read_header(cursor, {_TEMPLATE: _TEMPLATE_BYTES}).values)


def _given_template(settings: ModelSettings) -> str | None:
    """Return the beginning of the template that is used in place of the model's own."""
    if settings.chat_template is None:
        return None
    with settings.chat_template.open(encoding="utf-8", errors="replace") as file:
        return file.read(_TEMPLATE_BYTES)


def _plain(value: "Value") -> bool | int | float | str | ArraySize:
    """Return a value that JSON has."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return ArraySize(value.count)
