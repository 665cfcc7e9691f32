"""The folder of downloaded models, and the files of it that a command may touch."""

import re
from argparse import ArgumentTypeError
from pathlib import Path
from shlex import quote

from car_client.carctl.hub.remote import PullError
from car_client.results import Model
from car_protocol.hub import FORM, PREFIX, SYSTEM_MODELS, HubFile, hub_file, models_folder

# A reason with such a verb says what to do.
_REMEDY = re.compile("[:;] (set|name) ")
# The file of a model that is refused with these words is whole.
_UNSERVED = "which card does not serve"


def hub_name(text: str) -> HubFile:
    """Parse `hf:OWNER/REPO/FILE.gguf`, for argparse."""
    if not text.startswith(PREFIX):
        raise ArgumentTypeError(f"{text!r} is not {PREFIX}{FORM}")
    try:
        return hub_file(text.removeprefix(PREFIX))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def folder_of(*, system: bool) -> Path:
    """Return the system service's folder, or this user's."""
    return SYSTEM_MODELS if system else models_folder()


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a file is in the folder after all links are resolved."""
    return ".." not in path.parts and path.parent.resolve().is_relative_to(folder.resolve())


def check_inside(path: Path, folder: Path) -> None:
    """Raise PullError if a link leads out of the folder."""
    if not is_inside(path, folder):
        raise PullError(f"a link leads out of {folder}: {path.parent}; remove it")


def file_advice(model: Model, why: str = "") -> str:
    """Return advice about a model whose file cannot be used, empty if the reason says what to do."""
    if _REMEDY.search(why):
        return ""
    if _UNSERVED in why:
        return "use another model: `carctl models suggest` names some"
    if model.size_bytes is not None:
        return f"check that {model.path} is a complete GGUF file"
    for system in (False, True):
        file = file_at(Path(model.path), folder_of(system=system))
        if file is not None:
            return f"run: carctl{' --system' if system else ''} models pull {quote(str(file))}"
    return "correct its path"


def file_at(path: Path, folder: Path) -> HubFile | None:
    """Return the hub's file at a path, after all links are resolved; None for any other file."""
    if not path.is_absolute():
        return None  # relative to the folder in which the daemon was started
    try:
        return hub_file((path.parent.resolve() / path.name).relative_to(folder.resolve()).as_posix())
    except ValueError:
        return None
