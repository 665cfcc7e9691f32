"""The memory of an adoption: a file for this user alone, which says how to go back."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from car_client.carctl.adopt.plan import ServerCommands
from car_client.carctl.config.card_toml import replace_file
from car_client.errors import CardError


class JournalError(CardError):
    """The memory of an adoption cannot be read or written."""


class Adoption(Struct):
    """An adoption as far as it went; `before` and `after` are texts of card.toml, `door` a process or a unit."""

    port: int
    way: ServerCommands | None
    folder: str = "/"
    env: dict[str, str] = {}
    back_by_hand: str = ""
    models: list[str] = []
    before: str | None = None
    after: str = ""
    stopped: bool = False
    door: int | str | None = None


class Journal:
    """The file of one server's adoption."""

    def __init__(self, server: str, env: Mapping[str, str] = os.environ) -> None:
        if sys.platform == "darwin":
            folder = Path.home() / "Library" / "Application Support" / "car"
        else:
            folder = Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "car"
        self.path = folder / f"adopted-{server}.json"

    def read(self) -> Adoption | None:
        """Return the adoption, None if there is none; raises JournalError."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Adoption)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"cannot read {self.path}: {error}") from error

    def write(self, adoption: Adoption) -> None:
        """Replace the file; raises JournalError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(adoption)))
        except OSError as error:
            raise JournalError(f"cannot write {self.path}: {error.strerror}") from error

    def remove(self) -> None:
        """Forget the adoption."""
        self.path.unlink(missing_ok=True)
