"""The configuration file as commands change it: comments, order and meaning of all else stay."""

import errno
import os
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from car_client.errors import CardError
from car_client.file_lock import lock_of

SYSTEM_CONFIG = Path("/etc/car/card.toml")
_WRITABLE = 0o222


class ConfigUnwritable(CardError):
    """The file cannot be changed; it is as it was."""


def config_path(env: Mapping[str, str] = os.environ, *, system: bool = False) -> Path:
    """Return the file that the system service, or this user's daemon, reads first."""
    if system:
        return SYSTEM_CONFIG
    return Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "car" / "card.toml"


class ConfigChanged(ConfigUnwritable):
    """Another program changed the file after it was read."""


class CardToml:
    """One configuration file: `models` and `default_model` as they are, and changes to them.

    Raises ConfigUnwritable if the file is not TOML, cannot be read, or tomlkit is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tomlkit = load_tomlkit()
        self._before = _read(path)  # bytes to go back to; None without a file
        self._last = self._before  # bytes that were read or written last
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
        """Go back to the file as it was if the block failed."""
        if error is not None:
            self.restore()

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The tables of models by name."""
        models: dict[str, dict[str, Any]] = self._plain.get("models", {})
        return models

    @property
    def text(self) -> str:
        """The text of the file."""
        return self._text

    @property
    def default_model(self) -> str | None:
        """The configured default model."""
        return self._plain.get("default_model")

    @property
    def offer(self) -> str | None:
        """A line about files in which prompts survive a restart; None if they are configured."""
        if "cache_dir" in (self._plain.get("scheduler") or {}):
            return None
        return f'to answer fast after a restart, too: cache_dir = "~/.cache/car/cells" below [scheduler] in {self.path}'

    def add_model(self, name: str, table: Mapping[str, object]) -> None:
        """Add the table of a model that is not there yet, after all else."""
        self._text = _appended(self._text, self._tomlkit.dumps({"models": {name: dict(table)}}))
        self._plain = {**self._plain, "models": {**self.models, name: dict(table)}}

    def remove_models(self, names: Collection[str]) -> None:
        """Remove the tables of models if they are still there, and `default_model` if it names a removed model."""
        document, models = self._document(), self.models
        for name in set(names) & models.keys():
            del document["models"][name]
        left = {name: table for name, table in models.items() if name not in names}
        self._plain = {**self._plain, "models": left}
        if not left:
            document.pop("models", None)
            self._plain.pop("models", None)
        if self.default_model in names:
            del document["default_model"], self._plain["default_model"]
        self._text = self._tomlkit.dumps(document)

    def set_aliases(self, name: str, aliases: Sequence[str]) -> None:
        """Set the further names of a model; without any it has no such key."""
        document = self._document()
        table = {key: value for key, value in self.models[name].items() if key != "aliases"}
        document["models"][name].pop("aliases", None)
        if aliases:
            document["models"][name]["aliases"] = table["aliases"] = list(aliases)
        self._text = self._tomlkit.dumps(document)
        self._plain = {**self._plain, "models": {**self.models, name: table}}

    def use_model(self, name: str) -> None:
        """Make a model the default one."""
        document = self._document()
        if "default_model" in document:
            document["default_model"] = name
            self._text = self._tomlkit.dumps(document)
        else:
            # Before all tables: after one it would belong to it.
            self._text = _prepended(self._text, self._tomlkit.dumps({"default_model": name}))
        self._plain = {**self._plain, "default_model": name}

    def set_http(self, values: Mapping[str, object]) -> None:
        """Set keys of `[http]`, the table of the HTTP door."""
        table = self._plain.get("http")
        if table is None:
            self._text = _appended(self._text, self._tomlkit.dumps({"http": dict(values)}))
        elif isinstance(table, dict):
            document = self._document()
            document["http"].update(values)
            self._text = self._tomlkit.dumps(document)
        else:
            raise ConfigUnwritable(f"{self.path}: http is not a table: write [http]")
        self._plain = {**self._plain, "http": {**(table or {}), **values}}

    def add_delegate(self, uid: int) -> None:
        """Let a user name people to the daemon."""
        table = self._plain.get("daemon", {})
        if not isinstance(table, dict) or not isinstance(delegates := table.get("delegates", []), list):
            raise ConfigUnwritable(f"{self.path}: daemon.delegates is not a list of user ids")
        if uid in delegates:
            return
        values = {"delegates": [*delegates, uid]}
        if "daemon" not in self._plain:
            self._text = _appended(self._text, self._tomlkit.dumps({"daemon": values}))
        else:
            document = self._document()
            document["daemon"].update(values)
            self._text = self._tomlkit.dumps(document)
        self._plain = {**self._plain, "daemon": {**table, **values}}

    @property
    def changed(self) -> bool:
        """Whether saving would change the file."""
        return self._text.encode() != (self._last or b"")

    @property
    def people(self) -> dict[str, dict[str, Any]]:
        """The tables of people by name."""
        people = self._plain.get("people", {})
        if not isinstance(people, dict) or not all(isinstance(each, dict) for each in people.values()):
            raise ConfigUnwritable(f"{self.path}: people is not a table of tables: write [people.NAME]")
        return people

    def set_person(self, name: str, table: Mapping[str, object] | None) -> None:
        """Set keys of a person's table, which is made if it is missing; a value of None removes its key.

        None in place of the table removes the table.
        """
        people = {**self.people}
        present = people.pop(name, None)
        if table is not None:
            joined = {**(present or {}), **table}
            people[name] = {key: value for key, value in joined.items() if value is not None}
        if present is None:
            self._text = _appended(self._text, self._tomlkit.dumps({"people": {name: people.get(name, {})}}))
        else:
            document = self._document()
            if table is None:
                del document["people"][name]
            else:
                document["people"][name].update({key: value for key, value in table.items() if value is not None})
                for key in [key for key, value in table.items() if value is None]:
                    document["people"][name].pop(key, None)
            if not people:
                del document["people"]
            self._text = self._tomlkit.dumps(document)
        self._plain = {**self._plain, "people": people}
        if not people:
            del self._plain["people"]

    def save(self) -> None:
        """Replace the file, or raise ConfigChanged or another ConfigUnwritable and change nothing."""
        try:
            kept = tomllib.loads(self._text) == self._plain
        except tomllib.TOMLDecodeError:
            kept = False
        if not kept:
            raise self._unclear()
        place = self.path.resolve()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with lock_of(place):
                if _read(self.path) != self._last:
                    raise ConfigChanged(f"{self.path} was changed meanwhile and was left as it is: run this again")
                self._write(self._text.encode())
        except OSError as error:
            raise ConfigUnwritable(f"cannot write {self.path}: {error.strerror}") from error

    def restore(self) -> None:
        """Write the file as it was before, unless another program has changed it since."""
        if self._last == self._before or _read(self.path) != self._last:
            return
        if self._before is None:
            self.path.unlink()
        else:
            self._write(self._before)
        self._last = self._before

    def go_back(self, text: str | None) -> None:
        """Write an earlier text of the whole file; None removes it, with its folder if that is empty then."""
        if text is not None:
            self._write(text.encode())
            return
        self.path.unlink(missing_ok=True)
        self._last = None
        with suppress(OSError):
            self.path.parent.rmdir()

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
            if self._last is None and self.path == SYSTEM_CONFIG:
                # The daemon and the door read it as users of their own; no key is in it.
                place.chmod(0o644)
        except OSError as error:
            raise ConfigUnwritable(f"cannot write {self.path}: {error.strerror}") from error
        self._last = data


def replace_file(place: Path, data: bytes) -> None:
    """Put a file in place as a whole, with mode and owner of the one before.

    Raises OSError, also if that file is read-only.
    """
    before = place.stat() if place.exists() else None
    if before is not None and not before.st_mode & _WRITABLE:
        raise PermissionError(errno.EACCES, "the file is read-only", str(place))
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if before is not None:
                _keep_owner(descriptor, before)
            os.fchmod(descriptor, 0o600 if before is None else before.st_mode & 0o777)
            os.fsync(descriptor)
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise


def _keep_owner(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)


def _appended(text: str, tables: str) -> str:
    """Return the text with tables after all else."""
    kept, gap = (text.rstrip(), "\n\n") if text.strip() else (text, "")
    return kept + _with_ends_of(text, gap + tables)


def _prepended(text: str, line: str) -> str:
    """Return the text with a line before all tables, after the comments about the whole file."""
    start = _end_of_comments(text)
    before, after = text[:start], text[start:]
    gap = "\n" if after.strip() and after.splitlines()[0].strip() else ""
    return before + _with_ends_of(text, line + gap) + after


def _with_ends_of(text: str, lines: str) -> str:
    """Return lines that end as the lines of the text do."""
    return lines.replace("\n", "\r\n") if "\r\n" in text else lines


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
    """Return tomlkit; raises ConfigUnwritable if it is missing."""
    try:
        import tomlkit
        import tomlkit.exceptions
    except ModuleNotFoundError as error:
        raise ConfigUnwritable("changes to TOML files need tomlkit: pip install 'card-daemon[terminal]'") from error
    return tomlkit
