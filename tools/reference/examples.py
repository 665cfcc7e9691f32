"""The programs of examples/ that pages show, as they are."""

from collections.abc import Callable
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "examples"
_LANGUAGES = {".py": "python", ".sh": "bash"}


def shown(name: str) -> str:
    """Return a program as a block of code."""
    file = _FOLDER / name
    return f"```{_LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}```"


README: dict[str, Callable[[], str]] = {"first": lambda: shown("first.py")}
TUTORIAL: dict[str, Callable[[], str]] = {**README, "stream": lambda: shown("stream_async.py")}
CLIENT: dict[str, Callable[[], str]] = {"shell": lambda: shown("ask.sh")}
