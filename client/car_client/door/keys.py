"""The keys of the loopback ports: a file for this user alone, one `NAME KEY` a line, and hashes of people's."""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from car_client.errors import CardError
from car_client.file_lock import lock_of

# Requests that carry the key with this name share caches with the requests of the user's other programs.
DEFAULT_NAME = "default"
FILE_NAME = "http-keys"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_SECRET = re.compile(r"[\x21-\x7e]{16,512}", re.ASCII)
_SECRET_BYTES = 32
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OTHERS_MAY = 0o077
_MOST_BYTES = 256 * 1024


class KeysError(CardError):
    """The file of keys cannot be used; the message says what to do."""


class Key(Struct, frozen=True):
    """A key and its name, which is the tenant of the requests that carry the key.

    A person's is known by its `digest` alone; its name begins with @, and its secret is this door's, for sessions.
    """

    name: str
    secret: str
    person: str | None = None
    digest: str = ""

    def __repr__(self) -> str:
        return f"<Key {self.name}>"

    @property
    def salt(self) -> str | None:
        """The salt of the caches that its requests share; None for the default key, and for people's own caches."""
        return None if self.name == DEFAULT_NAME or self.person is not None else self.name


def keys_path(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of this user's keys, beside card.toml."""
    return Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "car" / FILE_NAME


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file, none if it does not exist; raises KeysError."""
    try:
        with open(path, "rb", opener=_open) as file:
            return _parsed(path, file.read(_MOST_BYTES))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KeysError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error


def ensure_keys(path: Path) -> list[Key]:
    """Return the keys of a file; the first one, named `default`, is made if there is none. Raises KeysError."""
    return read_keys(path) or [add_key(path, DEFAULT_NAME)]


def own_key(path: Path) -> Key:
    """Return the user's own key, named `default`, or the first of a file without it; it is made if there is none.

    Raises KeysError.
    """
    keys = ensure_keys(path)
    return next((key for key in keys if key.name == DEFAULT_NAME), keys[0])


def add_key(path: Path, name: str) -> Key:
    """Make a key and append it to the file; return the present key if the name has a key. Raises KeysError."""
    if not _NAME.fullmatch(name):
        raise KeysError(f"{name!r} cannot name a key: give up to 64 letters, digits, `_`, `.` and `-`")
    with _locked(path):
        keys = read_keys(path)
        present = next((key for key in keys if key.name == name), None)
        if present is not None:
            return present
        key = Key(name, new_secret())
        _write(path, [*keys, key])
        return key


def is_name(text: str) -> bool:
    """Return whether a text can name a key or a person."""
    return _NAME.fullmatch(text) is not None


def new_secret() -> str:
    """Return the text of a new key."""
    return f"card-{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest_of(secret: str) -> str:
    """Return the hash by which a person's key is stored; a key is random, so that one round is enough."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def remove_key(path: Path, name: str) -> bool:
    """Remove a key from the file; return whether it was there. Raises KeysError."""
    with _locked(path):
        keys = read_keys(path)
        rest = [key for key in keys if key.name != name]
        if len(rest) < len(keys):
            _write(path, rest)
        return len(rest) < len(keys)


class KnownKeys:
    """Keys by the hash of their secret and by name, so that a request's key is found among any number at once.

    The time of a look tells of the hash at most, and a hash does not lead back to the secret.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_digest = {key.digest or digest_of(key.secret): key for key in keys}
        self._by_name = {key.name: key for key in self._by_digest.values()}

    def __repr__(self) -> str:
        return f"<KnownKeys {len(self._by_digest)}>"

    def holder(self, given: str) -> Key | None:
        """Return the key that a request carries."""
        return self._by_digest.get(digest_of(given))

    def named(self, name: str) -> Key | None:
        """Return the key of a name."""
        return self._by_name.get(name)


class KeyRing:
    """The keys of a file and of the people in card.toml, read again after each change of either file.

    A file of keys that cannot be used admits no key. While card.toml has a mistake, the people stay as they were.
    """

    def __init__(self, path: Path, config: Path | None = None) -> None:
        self.path = path
        self._config = config
        self._seen: tuple[tuple[int, ...] | None, ...] | None = None  # the versions that were read
        self._keys: list[Key] = []
        self._known = KnownKeys([])
        self._own = new_secret()
        self._people: list[tuple[str, str]] | None = None  # names and hashes, once card.toml was read

    def keys(self) -> list[Key]:
        """Return the keys; raises KeysError."""
        config = None if self._config is None else _version(self._config, os.stat)
        seen = _version(self.path, os.lstat), config
        if seen[0] is None or seen != self._seen:
            self._seen, self._keys = None, []
            own = read_keys(self.path)
            self._keys = own + self._keys_of_people(own)
            self._known = KnownKeys(self._keys)
            self._seen = seen
        return self._keys

    def known(self) -> KnownKeys:
        """Return the keys as requests find them; raises KeysError."""
        self.keys()
        return self._known

    def _keys_of_people(self, own: list[Key]) -> list[Key]:
        try:
            self._people = _people_in(self._config)
        except (OSError, ValueError, RecursionError) as error:
            if self._people is None:
                why = error if isinstance(error, _SharedKey) else type(error).__name__
                raise KeysError(f"cannot read the people of {self._config}: {why}") from error
        # The hash of a person's key is no secret: what signs sessions of the page is made of a key of the door's own,
        # so that sessions outlive the door, and end when that key is replaced; without one they end with the door.
        secret = next((key.secret for key in own if key.name == DEFAULT_NAME), self._own)
        return [
            Key(f"@{name}", hmac.digest(secret.encode(), digest.encode(), hashlib.sha256).hex(), name, digest)
            for name, digest in self._people
        ]


class _SharedKey(ValueError):
    """Two people have one key; the message says what to do."""


def _people_in(config: Path | None) -> list[tuple[str, str]]:
    """Return people with the hashes of their keys; raises OSError, ValueError and RecursionError."""
    try:
        tables = {} if config is None else tomllib.loads(config.read_text()).get("people", {})
    except FileNotFoundError:
        return []
    found = [(name, _digest(table)) for name, table in tables.items()] if isinstance(tables, dict) else []
    people = [(name, digest) for name, digest in found if digest]
    if len({digest for _, digest in people}) < len(people):
        raise _SharedKey("two people have one key: remove one of them, and add it again")
    return people


def _digest(table: Any) -> str | None:
    digest = table.get("key") if isinstance(table, dict) else None
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def _version(path: Path, look: Callable[[Path], os.stat_result]) -> tuple[int, ...] | None:
    """Return the facts that a change of the content, the owner or the permissions changes; None without a file."""
    try:
        facts = look(path)
    except OSError:
        return None
    return (
        facts.st_dev,
        facts.st_ino,
        facts.st_mode,
        facts.st_uid,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )


def _open(path: str, flags: int) -> int:
    """Open a file and check it before it is read, because Python opens no folder; raises KeysError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check(path, os.fstat(descriptor))
    except KeysError:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise KeysError(f"{path} is not a regular file: remove it, then run `carctl http key`")
    if facts.st_uid != os.getuid():
        raise KeysError(f"{path} belongs to another user: remove it, or set [http] keys to another path")
    if facts.st_mode & _OTHERS_MAY:
        raise KeysError(f"other users may read {path}: run chmod 600 on it, and replace its keys")
    if facts.st_size > _MOST_BYTES:
        raise KeysError(f"{path} has {facts.st_size} bytes, at most {_MOST_BYTES} are read: remove keys from it")


def _parsed(path: Path, data: bytes) -> list[Key]:
    keys = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, secret = line.strip().partition(" ")
        if not (_NAME.fullmatch(name) and _SECRET.fullmatch(secret.strip())):
            raise KeysError(f"{path}: line {number} is not `NAME KEY` with a key of 16 to 512 visible characters")
        keys.append(Key(name, secret.strip()))
    return keys


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock beside the file: two programs that add keys at once both succeed. Raises KeysError."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(lock_of(path))
        except OSError as error:
            raise KeysError(f"cannot write beside {path}: {os.strerror(error.errno or 0)}") from error
        yield


def _write(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file at once: a reader finds the old keys or the new keys."""
    beside = path.with_name(path.name + ".new")
    text = "# Keys of card-http, a name and a key a line; only this user may read this file.\n"
    text += "".join(f"{key.name} {key.secret}\n" for key in keys)
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except OSError as error:
        raise KeysError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from error
