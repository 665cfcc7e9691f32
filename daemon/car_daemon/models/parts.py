"""The check of all files of a model: those of one that is split, its adapters, its projector."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from car_daemon.models.unsound import Reason, UnsoundModel

if TYPE_CHECKING:
    from car_daemon.models.entry import ModelSettings
    from car_daemon.models.soundness import Facts

# llama.cpp finds the later parts by this form of name, and takes no other.
_FIRST = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


def check_files(settings: "ModelSettings") -> "list[Facts]":
    """Return the facts of the model's own files, once all are sound; raises UnsoundModel, which says which is not."""
    from car_daemon.models.soundness import check_adapter, check_projector, check_regular

    if settings.pull is not None and not os.path.isfile(settings.path):
        raise UnsoundModel(Reason.NOT_DOWNLOADED)
    facts = check_model(settings.path)
    for name, path in settings.adapters.items():
        _check_beside(f"the adapter {name}", check_adapter, path)
    if settings.projector is not None:
        _check_beside("the projector", check_projector, settings.projector)
    if settings.chat_template is not None:
        _check_beside("the chat template", check_regular, settings.chat_template)
    return facts


def _check_beside(role: str, check: Callable[[Path], None], path: Path) -> None:
    try:
        check(path)
    except UnsoundModel as unsound:
        raise UnsoundModel(unsound.reason, role) from None


def check_model(path: Path) -> "list[Facts]":
    """Return the facts of all files of a model; raises UnsoundModel."""
    # Imported where it is needed: a daemon answers its first question some milliseconds sooner.
    from car_daemon.models.soundness import check

    first = check(path)
    name = _FIRST.fullmatch(path.name)
    if name is None:
        return [first]
    others = (path.with_name(f"{name[1]}-{number:05}-of-{name[2]}.gguf") for number in range(2, first.parts + 1))
    return [first, *(check(other) for other in others)]
