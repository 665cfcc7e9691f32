"""The file with the token of a Ray cluster: whoever has the token runs code on every machine of the cluster."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from car_client.errors import CardError

PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES = 4096


class TokenError(CardError):
    """The token cannot be used."""


def token_path(given: str | None, env: Mapping[str, str]) -> Path:
    """Return the file that is given, else the one that Ray reads."""
    path = given or env.get(PATH_VARIABLE) or str(Path.home() / ".ray" / "auth_token")
    return Path(path).expanduser().absolute()


def check_token(path: Path) -> None:
    """Raise TokenError for a file without a token, and for one that other users may read."""
    try:
        facts = path.stat()
        content = path.read_bytes()[: _MOST_BYTES + 1]
    except OSError as error:
        raise TokenError(f"{path}: {os.strerror(error.errno or 0).lower()}: copy the token file of the head") from error
    if facts.st_mode & _OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        raise TokenError(f"other users may use {path} (mode {mode:03o}): run chmod 600 on it")
    if not content.strip():
        raise TokenError(f"{path} is empty: on the head, `ray get-auth-token` prints the token")
    if len(content) > _MOST_BYTES:
        raise TokenError(f"{path} has more than {_MOST_BYTES} bytes, so it is not a token: name the right file")


def write_token(path: Path, token: str) -> None:
    """Write a file that its owner alone may read; raises TokenError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(token)
    except OSError as error:
        raise TokenError(f"cannot write {path}: {os.strerror(error.errno or 0).lower()}") from error
