"""The pictures in docs/pictures: whole, true to carctl, and fetching nothing from anybody."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.text import Text

from car_client.carctl.view.picture import picture
from tests.client.carctl.pictures import busy
from tools.pictures.svg import drawn

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
KEPT = {file.name: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.svg"))}
NAMESPACES = {"http://www.w3.org/2000/svg"}


def words(svg: str) -> str:
    """Return what a picture says."""
    spoken = "".join(ElementTree.fromstring(svg).itertext())
    return spoken.replace("\N{NO-BREAK SPACE}", " ")


def fetches(svg: str) -> bool:
    """Tell whether a browser would ask anybody for a part of the picture."""
    for namespace in NAMESPACES:
        svg = svg.replace(f'xmlns="{namespace}"', "")
    svg = svg.replace("url(#", "")
    return any(part in svg for part in ("@font-face", "url(", "@import", "href", "<script"))


WORKING = ("serving", "ready", "capacity", "queue", "decode")
SHOWN = {
    "carctl-models-find.svg": ("LM Studio", "carctl models add ~/"),
    "carctl-models-suggest.svg": ("licence", "Apache-2.0", "hf:"),
    "carctl-status.svg": (*WORKING, "indexer"),
    "carctl-top.svg": (*WORKING, "indexer"),
    "carctl-up.svg": ("card is up: guide", "carctl infer", "card is down"),
    "make-demo.svg": ("4 decode", "batch", "first token", "editor alone", "editor beside 4 streams"),
}


def test_every_picture_is_there() -> None:
    assert list(KEPT) == list(SHOWN)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_picture_fetches_nothing_and_shows_its_commands(name: str) -> None:
    assert not fetches(KEPT[name])
    said = words(KEPT[name])
    assert name.removesuffix(".svg").replace("-", " ") in said
    for part in SHOWN[name]:
        assert part in said
    assert len(KEPT[name]) < 40_000


def test_a_drawing_says_what_the_terminal_says_and_fetches_nothing() -> None:
    svg = drawn(picture(busy(), 80, 24), "carctl status", 80, 24)
    assert not fetches(svg)
    assert "mail indexer" in words(svg) or "search" in words(svg)
    assert "pressure some" in words(svg)


def test_text_in_a_drawing_stays_text() -> None:
    assert "<b>&" in words(drawn(Text("<b>&"), "x", 20, 2))
