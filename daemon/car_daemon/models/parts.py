"""The check of a whole model: all files of one that is split."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from car_daemon.models.entry import ModelSettings
from car_daemon.models.unsound import Reason, UnsoundModel

if TYPE_CHECKING:
    from car_daemon.models.soundness import Facts

# llama.cpp finds the later parts by this form of name, and takes no other.
_FIRST = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


def check_files(settings: ModelSettings) -> "list[Facts]":
    """Return the facts of a model's files; raises UnsoundModel, also where they have to be downloaded first."""
    if settings.pull is not None and not os.path.isfile(settings.path):
        raise UnsoundModel(Reason.NOT_DOWNLOADED)
    return check_model(settings.path)


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
