"""The paths of configured models, derived from the configuration alone: no file is opened or downloaded."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from car_daemon.config.tables import ModelTable
from car_protocol.hub import PREFIX, hub_file, models_folder


class NotLocated(Exception):
    """A model's table names no usable file; `key` is the invalid key."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class Located(NamedTuple):
    """The path of a model's file, and the command that downloads it; None for a file given by its path."""

    path: Path
    pull: str | None


def located(table: ModelTable, env: Mapping[str, str]) -> Located:
    """Return the location of a model's file; raises NotLocated."""
    if table.path is not None and table.hf is not None:
        raise NotLocated("give either path or hf, not both", "hf")
    if table.hf is not None:
        try:
            file = hub_file(table.hf)
        except ValueError as error:
            raise NotLocated(str(error), "hf") from error
        # In the service manager's folder, where it gives one, else in the user's.
        state = env.get("STATE_DIRECTORY")
        folder, option = (Path(state) / "models", " --system") if state else (models_folder(env), "")
        return Located(file.under(folder), f"carctl{option} models pull {shlex.quote(str(file))}")
    if table.path is None:
        raise NotLocated('give the path of a GGUF file, or hf = "owner/repo/file.gguf"', "path")
    return Located(expanded(table.path), None)


def given_table(model: str) -> ModelTable:
    """Return the table for the argument of `--model`: a path, or a file of the hub."""
    return ModelTable(hf=model.removeprefix(PREFIX)) if model.startswith(PREFIX) else ModelTable(path=model)


def expanded(path: str) -> Path:
    """Return a path with `~` expanded; raises NotLocated."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        raise NotLocated(f"there is no such user as in {path!r}: give an absolute path", "path") from error
