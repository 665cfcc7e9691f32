"""The contents and the memory of a model's files by their headers, for `models/show`; a load does not use this."""

import math
import os
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from car_base.capacity.capacity import CapacityInputs, estimate_capacity
from car_base.capacity.curve import Curve
from car_base.host.devices import CPU
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.template_syntax import style_of, tags_of
from car_daemon.models.abilities import TEMPLATE, TEMPLATE_BYTES, template_of
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_estimate import MemoryEstimate, cells_of, estimate_memory
from car_daemon.models.model_files import check_files
from car_daemon.models.settings import ModelSettings
from car_protocol.models import ArraySize, Estimate, ModelFile

if TYPE_CHECKING:
    from car_daemon.gguf.header import Value
    from car_daemon.gguf.validation import Facts

# Published models have some dozens of keys.
_KEYS = 256


class Inspected(Struct, frozen=True):
    """The contents of a valid model's files, and the host memory of one replica with no layer on a GPU."""

    file: ModelFile
    first: "Facts"
    cells: SequenceBytes
    estimate: MemoryEstimate


def inspect(settings: ModelSettings) -> Inspected:
    """Read the headers; raises InvalidModel."""
    from car_daemon.gguf.bounded_reader import BoundedReader
    from car_daemon.gguf.header import read_header
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
    """Return the settings that a model is served with or, where it is not served, that it will be loaded with."""
    return entry.configured if entry.replicas.ready is None else entry.settings


def _plain(value: "Value") -> bool | int | float | str | ArraySize:
    """Return a value as JSON can express it."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return ArraySize(value.count)
