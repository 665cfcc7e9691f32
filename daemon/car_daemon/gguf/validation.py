"""Validation of a model file before an engine opens it, in plain Python and by its header alone."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from car_base.host.files import NotRegular, open_regular
from car_daemon.gguf.header import BoundedReader, Header, read_header
from car_daemon.gguf.hyperparameters import Attention, Hyperparameters, check_vocabulary
from car_daemon.gguf.invalid import Flaw, InvalidModel, refuse
from car_daemon.gguf.tensors import check_tensors, count_parameters, embedding_bytes, layer_weights, unknown_types
from car_protocol.models import MemoryKind

_NAME_CHARACTERS = 64
# Errors that are not caused by the file.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
# llama.cpp's name for the architecture of all projectors.
_PROJECTORS = "clip"
_ADAPTERS = "adapter"
# Architectures that llama.cpp knows and card does not serve. Loaded, a model that writes by diffusion returns vectors
# that mean nothing.
_UNSERVED = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), Flaw.DIFFUSION),
    **dict.fromkeys(("t5", "t5encoder"), Flaw.TRANSLATES),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), Flaw.DRAFTS),
    "wavtokenizer-dec": Flaw.SOUNDS,
}


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The facts of a valid header, None or 0 if it has none; `warnings` are parts that only an engine can judge."""

    architecture: str | None
    tensor_bytes: int
    parameters: int
    file_type: int | None
    vocabulary: int | None
    context_length: int
    embedding_length: int
    block_count: int
    attention: Attention
    state_bytes: int
    most_tokens: int | None
    parts: int
    warnings: tuple[str, ...]
    layers: tuple[tuple[int, int, int], ...]  # number, bytes of all weights, and of the experts among them
    embedding_bytes: int
    masks: int  # of attention in one batch
    memory: MemoryKind | None  # None for a later part of a split model
    unused_layers: int


def check(path: Path) -> HeaderFacts:
    """Return the facts of a valid file; raises InvalidModel. Each part of a split model is valid by itself."""
    with open_file(path) as file:
        reader = BoundedReader(file, os.fstat(file.fileno()).st_size)
        header = read_header(reader)
        tensor_bytes = check_tensors(header, reader.size)
        parts = _whole(header, "split.count") or 1
        refuse(Flaw.NO_TENSORS, when=not header.tensors and parts == 1)
        architecture = _architecture(header)
        refuse(Flaw.PROJECTOR, when=architecture == _PROJECTORS)
        refuse(Flaw.ADAPTER, when=_text(header, "general.type") == _ADAPTERS)
        check_served(architecture)
        sizes = Hyperparameters(header, reader, architecture or "")
        sizes.check()
        # llama.cpp aborts at a position beyond such a table.
        table = any(tensor.name == "position_embd.weight" for tensor in header.tensors)
        return HeaderFacts(
            architecture=architecture,
            tensor_bytes=tensor_bytes,
            parameters=count_parameters(header),
            file_type=_whole(header, "general.file_type"),
            vocabulary=check_vocabulary(header, reader),
            context_length=sizes.most("context_length"),
            embedding_length=sizes.most("embedding_length"),
            block_count=sizes.most("block_count"),
            attention=sizes.attention(),
            state_bytes=sizes.state_bytes(),
            most_tokens=sizes.most("context_length") if table else None,
            parts=parts,
            layers=layer_weights(header),
            embedding_bytes=embedding_bytes(header),
            masks=sizes.masks(),
            memory=None if architecture is None else sizes.memory(),
            unused_layers=sizes.most("nextn_predict_layers"),
            warnings=tuple(
                f"tensor type {type} is unknown to this version ({count} of {len(header.tensors)} tensors)"
                for type, count in unknown_types(header).items()
            ),
        )


def check_served(architecture: str | None) -> None:
    """Raise InvalidModel for an architecture that card does not serve."""
    if (unserved := _UNSERVED.get(architecture or "")) is not None:
        raise InvalidModel(unserved, architecture)


def check_adapter(path: Path) -> None:
    """Raise InvalidModel for a file that is not a valid LoRA adapter."""
    header = _read(path)
    kind = (_text(header, "general.type"), _text(header, "adapter.type"))
    refuse(Flaw.NO_ADAPTER, when=kind != (_ADAPTERS, "lora"))


def check_projector(path: Path) -> None:
    """Raise InvalidModel for a file that is not a valid projector of images or audio."""
    refuse(Flaw.NO_PROJECTOR, when=_architecture(_read(path)) != _PROJECTORS)


def check_regular(path: Path) -> None:
    """Raise InvalidModel for a file that cannot be read, or is not a regular file."""
    open_file(path).close()


def _read(path: Path) -> Header:
    with open_file(path) as file:
        reader = BoundedReader(file, os.fstat(file.fileno()).st_size)
        header = read_header(reader)
        check_tensors(header, reader.size)
        refuse(Flaw.NO_TENSORS, when=not header.tensors)
        return header


def open_file(path: Path) -> BinaryIO:
    """Open a regular file; raises InvalidModel for anything else without waiting, and OSError for a shortage."""
    try:
        descriptor = open_regular(path)
    except NotRegular:
        raise InvalidModel(Flaw.NOT_A_FILE) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            raise
        raise InvalidModel(Flaw.UNREADABLE) from None
    return open(descriptor, "rb", buffering=0)


def _architecture(header: Header) -> str | None:
    """Return the architecture's name, None for a later part of a split model; raises InvalidModel."""
    name = _text(header, "general.architecture")
    if name is None and "general.architecture" not in header.values and _whole(header, "split.no"):
        return None
    if not name or len(name) > _NAME_CHARACTERS or not name.isascii() or not name.isprintable():
        raise InvalidModel(Flaw.ARCHITECTURE)
    return name


def _text(header: Header, key: str) -> str | None:
    value = header.values.get(key)
    return value if isinstance(value, str) else None


def _whole(header: Header, key: str) -> int | None:
    value = header.values.get(key)
    return value if type(value) is int else None
