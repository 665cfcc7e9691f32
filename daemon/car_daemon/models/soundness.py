"""Whether a model file may be handed to an engine, checked in plain Python by its header alone."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from car_daemon.models.cursor import Cursor
from car_daemon.models.gguf import Header, read_header
from car_daemon.models.hyperparameters import Hyperparameters
from car_daemon.models.tensors import check_tensors, count_parameters
from car_daemon.models.unsound import Reason, UnsoundModel, refuse
from car_daemon.models.vocabulary import check_vocabulary
from car_daemon.regular_file import NotRegular, open_regular

_NAME_CHARACTERS = 64
# What says nothing of the file.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})
# What llama.cpp calls the architecture of all projectors.
_PROJECTORS = "clip"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the header says of a sound model; None or 0 where it says nothing."""

    architecture: str | None
    tensor_bytes: int
    parameters: int
    file_type: int | None
    vocabulary: int | None
    context_length: int
    embedding_length: int
    block_count: int
    kv_bytes_per_token: int
    state_bytes: int
    most_tokens: int | None
    parts: int


def check(path: Path) -> Facts:
    """Return the facts of a sound file; raises UnsoundModel. Later parts of a split model are sound by themselves."""
    with open_file(path) as file:
        cursor = Cursor(file, os.fstat(file.fileno()).st_size)
        header = read_header(cursor)
        tensor_bytes = check_tensors(header, cursor.size)
        parts = _whole(header, "split.count") or 1
        refuse(Reason.NO_TENSORS, when=not header.tensors and parts == 1)
        architecture = _architecture(header)
        sizes = Hyperparameters(header, cursor, architecture or "")
        sizes.check()
        return Facts(
            architecture=architecture,
            tensor_bytes=tensor_bytes,
            parameters=count_parameters(header),
            file_type=_whole(header, "general.file_type"),
            vocabulary=check_vocabulary(header, cursor),
            context_length=sizes.most("context_length"),
            embedding_length=sizes.most("embedding_length"),
            block_count=sizes.most("block_count"),
            kv_bytes_per_token=sizes.kv_bytes_per_token(),
            state_bytes=sizes.state_bytes(),
            most_tokens=sizes.most("context_length") if _has_position_table(header) else None,
            parts=parts,
        )


def check_adapter(path: Path) -> None:
    """Raise UnsoundModel for a file that is no LoRA adapter, or not sound."""
    header = _read(path)
    kind = (_text(header, "general.type"), _text(header, "adapter.type"))
    refuse(Reason.NO_ADAPTER, when=kind != ("adapter", "lora"))


def check_projector(path: Path) -> None:
    """Raise UnsoundModel for a file that is no projector of images, or not sound."""
    refuse(Reason.NO_PROJECTOR, when=_architecture(_read(path)) != _PROJECTORS)


def check_regular(path: Path) -> None:
    """Raise UnsoundModel for what cannot be read, or is no regular file."""
    open_file(path).close()


def _read(path: Path) -> Header:
    with open_file(path) as file:
        cursor = Cursor(file, os.fstat(file.fileno()).st_size)
        header = read_header(cursor)
        check_tensors(header, cursor.size)
        refuse(Reason.NO_TENSORS, when=not header.tensors)
        return header


def open_file(path: Path) -> BinaryIO:
    """Open a regular file; anything else is refused without waiting for it."""
    try:
        descriptor = open_regular(path)
    except NotRegular:
        raise UnsoundModel(Reason.NOT_A_FILE) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            raise
        raise UnsoundModel(Reason.UNREADABLE) from None
    return open(descriptor, "rb", buffering=0)


def _has_position_table(header: Header) -> bool:
    """Whether a position beyond the trained context ends the process."""
    return any(tensor.name == "position_embd.weight" for tensor in header.tensors)


def _architecture(header: Header) -> str | None:
    """Return the architecture's name; only later parts of a split model go without."""
    name = _text(header, "general.architecture")
    if name is None and "general.architecture" not in header.values and _whole(header, "split.no"):
        return None
    if not name or len(name) > _NAME_CHARACTERS or not name.isascii() or not name.isprintable():
        raise UnsoundModel(Reason.ARCHITECTURE)
    return name


def _text(header: Header, key: str) -> str | None:
    value = header.values.get(key)
    return value if isinstance(value, str) else None


def _whole(header: Header, key: str) -> int | None:
    value = header.values.get(key)
    return value if type(value) is int else None
