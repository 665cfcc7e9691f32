"""Recordings of a terminal: the lines that stay, and the width that a command has."""

import os
import re
from pathlib import Path

import pytest

from tools.pictures.recording import HEIGHT, WIDTH, output_of, screen, scrolled, typed

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_of_a_bar_that_was_drawn_again_the_last_state_stays() -> None:
    drawn = "\x1b[?25l\r\x1b[2Kguide 10%\r\x1b[2Kguide \x1b[32m100%\x1b[0m\r\n\x1b[?25hdone\r\n"
    assert screen(drawn) == "guide \x1b[32m100%\x1b[0m\ndone\n"


@pytest.mark.parametrize(("rows", "first"), [(3, 0), (HEIGHT - 1, 0), (HEIGHT, 1), (60, 61 - HEIGHT)])
def test_a_terminal_shows_the_last_rows_above_the_cursor(rows: int, first: int) -> None:
    lines = [f"row {number}" for number in range(rows)]
    assert scrolled("\n".join(lines) + "\n").split("\n") == lines[first:]


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_no_picture_of_the_documentation_is_higher_than_a_terminal(picture: Path) -> None:
    rows = set(re.findall(r'-r\d+" x="[\d.]+" y="([\d.]+)"', picture.read_text(encoding="utf-8")))
    assert 0 < len(rows) <= HEIGHT


def test_a_command_runs_on_a_terminal_of_that_size() -> None:
    assert typed("stty size", dict(os.environ)) == f"\x1b[1m$ stty size\x1b[0m\n{HEIGHT} {WIDTH}\n"


def test_a_failed_command_makes_no_picture(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ls .*none failed: .*No such file"):
        output_of(f"ls {tmp_path}/none", {"PATH": os.defpath, "LANG": "C"})
