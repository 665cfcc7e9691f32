"""The first minutes of a user as pictures: `carctl up`, `models suggest`, `models find`, and the end of the demo."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.pictures.recording import output_of, screen, scrolled, typed

_SHOWN_HOME = "/home/ada"
_GIB = 1 << 30
# Files without content in the places of other programs.
_FOUND = {
    ".lmstudio/models/Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf": 2.3,
    ".cache/llama.cpp/gemma-3-4b-it-Q4_K_M.gguf": 2.3,
    ".local/share/car/models/qwen2.5-coder-1.5b-q4_k_m.gguf": 1.0,
}


def first_minutes() -> Iterator[tuple[str, str]]:
    """Yield the name of each picture and its text, with the styles as escape sequences."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _fill(home)
        for name, commands in (
            ("carctl up", ["carctl up", 'carctl infer "What is card?"', "carctl down"]),
            ("carctl models suggest", ["carctl models suggest"]),
            ("carctl models find", ["carctl models find"]),
        ):
            text = "".join(typed(command, _environment(home)) for command in commands)
            yield name, scrolled(text.replace(folder, _SHOWN_HOME))
        yield "make demo", scrolled(_end_of_demo(home))


def _fill(home: Path) -> None:
    for place, gib in _FOUND.items():
        path = home / place
        path.parent.mkdir(parents=True)
        path.touch()
        os.truncate(path, int(gib * _GIB))


def _end_of_demo(home: Path) -> str:
    """Return the part of the demo with two apps at once, without the end of the daemon."""
    shown = screen(output_of(f"{sys.executable} -m tools.demo", _environment(home)))
    return "two apps at once" + shown.partition("two apps at once")[2].partition("$ kill")[0]


def _environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    variables = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PATH": path, "PYTHONPATH": os.getcwd()}
    return {**variables, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
