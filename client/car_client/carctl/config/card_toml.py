"""The configuration file as commands change it: comments, order and meaning of all else stay."""

import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from car_client.errors import CardError

SYSTEM_CONFIG = Path("/etc/car/card.toml")


class ConfigUnwritable(CardError):
    """The file cannot be changed; it is as it was."""


def config_path(env: Mapping[str, str] = os.environ, *, system: bool = False) -> Path:
    """Return the file that the system service, or this user's daemon, reads first."""
    if system:
        return SYSTEM_CONFIG
    return Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "car" / "card.toml"


class CardToml:
    """One configuration file: `models` and `default_model` as they are, and changes to them.

    Raises ConfigUnwritable where the file is not TOML, cannot be read, or tomlkit is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tomlkit = load_tomlkit()
        self._before = _read(path)  # bytes to go back to; None without a file
        try:
            self._text = (self._before or b"").decode()
            self._plain: dict[str, Any] = tomllib.loads(self._text)  # what the text has to mean
        except (ValueError, RecursionError) as error:
            raise ConfigUnwritable(f"{path} is not valid TOML and was left as it is: {error}") from error
        if not isinstance(self._plain.get("models", {}), dict):
            raise ConfigUnwritable(f"{path}: models is not a table: write [models.NAME]")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go back to the file as it was where the block failed."""
        if error is not None:
            self.restore()

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The tables of models by name."""
        models: dict[str, dict[str, Any]] = self._plain.get("models", {})
        return models

    @property
    def default_model(self) -> str | None:
        """The configured default model."""
        return self._plain.get("default_model")

    def add_model(self, name: str, table: Mapping[str, object]) -> None:
        """Add the table of a model that is not there yet, after all else."""
        added = self._tomlkit.dumps({"models": {name: dict(table)}})
        before = f"{self._text.rstrip()}\n\n" if self._text.strip() else self._text
        self._text = before + added
        self._plain = {**self._plain, "models": {**self.models, name: dict(table)}}

    def use_model(self, name: str) -> None:
        """Make a model the default one."""
        document = self._document()
        if "default_model" in document:
            document["default_model"] = name
            self._text = self._tomlkit.dumps(document)
        else:
            # Before all tables: after one it would belong to it.
            start = _end_of_comments(self._text)
            self._text = self._text[:start] + self._tomlkit.dumps({"default_model": name}) + self._text[start:]
        self._plain = {**self._plain, "default_model": name}

    def listen_http(self, addresses: Sequence[str]) -> None:
        """Set the addresses of the HTTP door, `[http] listen`; one of them is written as a string."""
        value = addresses[0] if len(addresses) == 1 else list(addresses)
        table = self._plain.get("http")
        if table is None:
            before = f"{self._text.rstrip()}\n\n" if self._text.strip() else self._text
            self._text = before + self._tomlkit.dumps({"http": {"listen": value}})
        elif isinstance(table, dict):
            document = self._document()
            document["http"]["listen"] = value
            self._text = self._tomlkit.dumps(document)
        else:
            raise ConfigUnwritable(f"{self.path}: http is not a table: write [http]")
        self._plain = {**self._plain, "http": {**(table or {}), "listen": value}}

    def save(self) -> None:
        """Replace the file, or raise ConfigUnwritable and change nothing."""
        try:
            kept = tomllib.loads(self._text) == self._plain
        except tomllib.TOMLDecodeError:
            kept = False
        if not kept:
            raise self._unclear()
        self._write(self._text.encode())

    def restore(self) -> None:
        """Write the file as it was before."""
        if self._before is None:
            self.path.unlink(missing_ok=True)
        elif _read(self.path) != self._before:
            self._write(self._before)

    def _document(self) -> Any:
        try:
            return self._tomlkit.parse(self._text)
        except self._tomlkit.exceptions.TOMLKitError as error:
            raise self._unclear() from error

    def _unclear(self) -> ConfigUnwritable:
        return ConfigUnwritable(f"{self.path} is written in a form that cannot be changed safely: edit it by hand")

    def _write(self, data: bytes) -> None:
        place = self.path.resolve()  # a link stays a link
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, data)
        except OSError as error:
            raise ConfigUnwritable(f"cannot write {self.path}: {error.strerror}") from error


def replace_file(place: Path, data: bytes) -> None:
    """Put a file in place as a whole, with the mode of the one before."""
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o600
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise


def _end_of_comments(text: str) -> int:
    """Return the offset after the comments that begin a file and are followed by an empty line."""
    end = 0
    for line in text.splitlines(keepends=True):
        if not line.startswith("#"):
            return end + len(line) if end and not line.strip() else 0
        end += len(line)
    return 0


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigUnwritable(f"cannot read {path}: {error.strerror}") from error


def load_tomlkit() -> ModuleType:
    """Return tomlkit; raises ConfigUnwritable where it is missing."""
    try:
        import tomlkit
        import tomlkit.exceptions
    except ModuleNotFoundError as error:
        raise ConfigUnwritable("changes to TOML files need tomlkit: pip install 'card-daemon[terminal]'") from error
    return tomlkit
