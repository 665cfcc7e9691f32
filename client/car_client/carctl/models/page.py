"""A model as a page: its entry, its file's metadata, and how many sequences fit into memory."""

from collections.abc import Iterator

from msgspec.structs import asdict

from car_client.carctl.hub.folder import file_advice
from car_client.carctl.terminal.text import bytes_text, clipped, mib_text, one_line, visible
from car_client.formats import FORMATS
from car_client.results import ModelDetails
from car_protocol.models import ArraySize, DeviceStatus, Estimate, MemoryKind, ModelFile

_INDENT = "  "
# Where a prompt goes on that begins like an earlier one, by what a sequence keeps of its tokens.
_KEEPS: dict[MemoryKind, str] = {
    "attention": "cells of all tokens: a prompt goes on after any token",
    "windows": "cells, in some layers of the last tokens alone: a prompt goes on at marks",
    "hybrid": "cells and states: a prompt goes on at marks",
    "recurrent": "states alone: a prompt goes on at marks",
}


def page(details: ModelDetails) -> Iterator[str]:
    """Yield the page line by line."""
    figures = _figures(details)
    width = max(map(len, figures))
    for name, figure in figures.items():
        yield one_line(f"{name:<{width}}  {figure}")
    if details.file is None:
        return
    yield from ("", "metadata")
    width = max(map(len, details.file.metadata), default=0)
    for key, value in details.file.metadata.items():
        yield clipped(f"{_INDENT}{key:<{width}}  {_shown(value)}")
    yield from ("", "chat template" if details.file.chat_template else "no chat template")
    yield from (_INDENT + line for line in visible(details.file.chat_template or "").splitlines())


def _figures(details: ModelDetails) -> dict[str, str]:
    model = details.model
    state = model.state if model.reason is None else f"{model.state}, {model.reason}"
    if model.state == "ready":
        state = f"ready on {model.device}, {model.capacity} at once, {model.context_tokens:,} tokens each"
    shown = {"model": f"{model.name} (default)" if model.default else model.name, "state": state, "file": model.path}
    if details.why is not None:
        shown["but"] = "; ".join(filter(None, (details.why, file_advice(model, details.why))))
    if details.file:
        shown |= _file_figures(details.file)
    lists = {"can": model.can, **_syntax(details.file), "aliases": model.aliases}
    shown |= {name: ", ".join(values) for name, values in lists.items() if values}
    given = {name: value for name, value in asdict(model.defaults).items() if value is not None}
    if given:
        shown["defaults"] = ", ".join(f"{name} {one_line(str(value))}" for name, value in given.items())
    if model.adapters:
        shown["adapters"] = ", ".join(model.adapters)
    if estimate := details.estimate:
        shown["takes"] = (
            f"{bytes_text(estimate.weights_bytes)} weights, {bytes_text(estimate.other_bytes)} buffers, "
            f"{bytes_text(estimate.kv_bytes_per_sequence)} for each sequence of {estimate.context_tokens:,} tokens in "
            f"{estimate.kv_type}"
        )
        shown["fits"] = _fits(estimate)
    if details.devices:
        shown["on GPUs"] = "; ".join(map(device_text, details.devices)) + experts_text(details.host_experts)
    return shown


def _file_figures(file: ModelFile) -> dict[str, str]:
    layers = f"{file.block_count} layers of {file.embedding_length:,}"
    if file.unused_layers:
        layers += f", of which {file.unused_layers} (MTP) not used"
    vocabulary = f", a vocabulary of {file.vocabulary:,}" if file.vocabulary is not None else ""
    shown = {"holds": _holds(file), "trained for": f"{file.context_length:,} tokens; {layers}{vocabulary}"}
    if file.memory is not None:
        shown["keeps"] = _KEEPS[file.memory]
    if file.warnings:
        shown["warnings"] = "; ".join(file.warnings)
    return shown


def _syntax(file: ModelFile | None) -> dict[str, list[str]]:
    """Return how the model writes calls and thoughts."""
    if file is None:
        return {}
    return {"tool_style": [file.tool_style] if file.tool_style else [], "thinking_tags": file.thinking_tags or []}


def _holds(file: ModelFile) -> str:
    weights = FORMATS.get(file.file_type, f"type {file.file_type}") if file.file_type is not None else "unknown format"
    parts = f", in {file.parts} files" if file.parts > 1 else ""
    return f"{file.architecture or 'an unnamed architecture'}, {file.parameters:,} parameters, {weights}{parts}"


def _fits(estimate: Estimate) -> str:
    free = f"{bytes_text(estimate.free_bytes)} free"
    if estimate.sequences is None:
        return f"as far as the GPU's memory goes, which is read when the model is loaded ({free} on the host)"
    if estimate.sequences == 0:
        return f"not into {free}"
    more = f", {estimate.most_sequences} where `sequences` requests them"
    fits = f"{estimate.sequences} sequences into {free}{more if estimate.most_sequences != estimate.sequences else ''}"
    return f"{fits}; {offers_text(estimate)}" if len(estimate.offers) > 1 else fits


def offers_text(estimate: Estimate) -> str:
    """Return the lengths that fit: "4 × 32,768 or 16 × 8,192"."""
    return " or ".join(f"{offer.sequences} × {offer.context_tokens:,}" for offer in estimate.offers)


def device_text(device: DeviceStatus) -> str:
    """Return what a model has on a GPU: what was planned, what the load took, and by how much that differs."""
    planned, taken = device.planned_bytes, device.taken_bytes
    difference = f" ({taken / planned - 1:+.1%})" if planned else ""
    return (
        f"{device.name}: {device.layers} layers, {mib_text(planned)} planned, {mib_text(taken)} taken{difference}, "
        f"{mib_text(device.free_bytes)} of {mib_text(device.total_bytes)} free"
    )


def experts_text(layers: int | None) -> str:
    """Return the end of a line about GPUs: the layers whose experts are not there."""
    return f"; experts of {layers} layers on the host" if layers else ""


def _shown(value: bool | int | float | str | ArraySize) -> str:
    match value:
        case ArraySize():
            return f"{value.count:,} values"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)
