"""The folder of downloaded models, and what of it a command may touch."""

from argparse import ArgumentTypeError
from pathlib import Path

from car_client.carctl.hub import PullError
from car_protocol.hub import FORM, PREFIX, SYSTEM_MODELS, HubFile, hub_file, models_folder


def hub_name(text: str) -> HubFile:
    """Return the file that a word names, for argparse."""
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
    """Tell whether a file would be in the folder, whatever links lead to it."""
    return ".." not in path.parts and path.parent.resolve().is_relative_to(folder.resolve())


def check_inside(path: Path, folder: Path) -> None:
    """Raise PullError for a file that a link leads out of the folder."""
    if not is_inside(path, folder):
        raise PullError(f"a link leads out of {folder}: {path.parent}")
