"""Where the files of configured models are; nothing is looked for and nothing is downloaded."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from car_daemon.config_tables import ModelTable
from car_protocol.hub import PREFIX, HubFile, hub_file, models_folder


class NotLocated(Exception):
    """A model's table does not say where its file is; `key` is the one at fault."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class Located(NamedTuple):
    """The path of a model's file, and the command that downloads it; None for a file that somebody put there."""

    path: Path
    pull: str | None


def located(table: ModelTable, env: Mapping[str, str]) -> Located:
    """Return where a model's file is; raises NotLocated."""
    if table.path is not None and table.hf is not None:
        raise NotLocated("give either path or hf, not both", "hf")
    if table.hf is not None:
        return _downloaded(_named(table.hf), env)
    if table.path is None:
        raise NotLocated('give the path of a GGUF file, or hf = "owner/repo/file.gguf"', "path")
    return Located(expanded(table.path), None)


def given_table(model: str) -> ModelTable:
    """Return the table for what the command line named: a path, or a file of the hub."""
    return ModelTable(hf=model.removeprefix(PREFIX)) if model.startswith(PREFIX) else ModelTable(path=model)


def expanded(path: str) -> Path:
    """Return a path with its `~`; raises NotLocated."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        raise NotLocated(f"there is no such user as in {path!r}", "path") from error


def _named(name: str) -> HubFile:
    try:
        return hub_file(name)
    except ValueError as error:
        raise NotLocated(str(error), "hf") from error


def _downloaded(file: HubFile, env: Mapping[str, str]) -> Located:
    """Return the place in the service manager's folder, where it gives one, else in the user's."""
    state = env.get("STATE_DIRECTORY")
    folder, option = (Path(state) / "models", " --system") if state else (models_folder(env), "")
    return Located(file.under(folder), f"carctl{option} models pull {shlex.quote(str(file))}")
