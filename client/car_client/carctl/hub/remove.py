"""`carctl models rm`: removes the files of a downloaded model."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from car_client.carctl.failure import WrongUse
from car_client.carctl.hub.folder import file_at, folder_of, hub_name, is_inside
from car_client.carctl.hub.part_file import parts_of
from car_client.carctl.request import nearest
from car_client.carctl.terminal.confirmation import confirmed
from car_client.carctl.terminal.text import bytes_text
from car_client.client import Client
from car_client.errors import CardError, DaemonUnavailable
from car_client.results import Model
from car_protocol.hub import PREFIX, HubFile

_IN_MEMORY = ("loading", "ready", "draining")


class NotRemoved(CardError):
    """Nothing was removed."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", type=_name, metavar="NAME|hf:OWNER/REPO/FILE.gguf", help="a downloaded model")
    parser.add_argument("--yes", action="store_true", help="remove without confirmation")


def run(client: Client, options: Namespace) -> None:
    """Remove a model's files after confirmation; raises NotRemoved."""
    models = _models(client, needed=isinstance(options.name, str))
    folder = folder_of(system=options.system)
    file = _named(options.name, models, folder) if isinstance(options.name, str) else options.name
    files = _files(file, folder)
    for model in models:
        if model.state in _IN_MEMORY and any(_is_same(Path(model.path), each) for each in files):
            raise NotRemoved(f"{model.name} is {model.state}: first run carctl models unload {model.name}")
    if not options.yes:
        _confirm(files)
    for path in files:
        _remove(path, folder)
        print(f"removed {path}")


def remove_files(file: HubFile, folder: Path) -> None:
    """Remove the files of a model; raises NotRemoved."""
    for path in _files(file, folder):
        _remove(path, folder)


def _name(text: str) -> str | HubFile:
    """Parse the name of a model or `hf:OWNER/REPO/FILE.gguf`, for argparse."""
    return hub_name(text) if text.startswith(PREFIX) else text


def _models(client: Client, *, needed: bool) -> Sequence[Model]:
    """Return the daemon's models; without a daemon none is in use, and names cannot be resolved."""
    try:
        return client.models()
    except DaemonUnavailable as error:
        if needed:
            raise DaemonUnavailable(f"{error}, so names are unknown: give hf:owner/repo/file.gguf") from error
        return []


def _named(name: str, models: Sequence[Model], folder: Path) -> HubFile:
    found = {model.name: Path(model.path) for model in models}
    if name not in found:
        raise WrongUse(f"unknown model {name!r}{nearest(name, found)}; `carctl models list` shows them")
    path = found[name]
    file = file_at(path, folder)
    if file is None:
        raise NotRemoved(f"{path} was not downloaded to {folder}: remove it yourself if you mean it")
    return file


def _files(file: HubFile, folder: Path) -> list[Path]:
    """Return the existing files of a model, the first part first, because without it the rest is not a model."""
    places = [part.under(folder) for part in file.parts()]
    if not all(is_inside(place, folder) for place in places):
        raise NotRemoved(f"a link leads out of {folder}: {places[0].parent}")
    found = [each for place in places for each in (place, *parts_of(place)) if each.is_file()]
    if not found:
        raise NotRemoved(f"there is no file {places[0]}")
    return found


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one file; the daemon sends other users than administrators the name alone."""
    if str(one) == other.name:
        return True
    try:
        return one.samefile(other)
    except OSError:
        return one == other


def _confirm(files: Sequence[Path]) -> None:
    size = sum(each.stat().st_size for each in files)
    what = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} and so on"
    if not confirmed(f"remove {what}", f" ({bytes_text(size)})"):
        raise NotRemoved("nothing was removed")


def _remove(path: Path, folder: Path) -> None:
    """Remove a file, and the folders that become empty."""
    try:
        path.unlink()
        for parent in path.parents:
            if parent == folder or any(parent.iterdir()):
                return
            parent.rmdir()
    except OSError as error:
        raise NotRemoved(f"cannot remove {path}: {os.strerror(error.errno or 0).lower()}") from error
