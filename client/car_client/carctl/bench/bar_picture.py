"""A picture of bars, drawn with Pillow."""

import os
from collections.abc import Sequence

from msgspec import Struct
from PIL import Image, ImageDraw, ImageFont

from car_client.carctl.failure import WrongUse

# Pixels, at twice the size at which a page shows them.
_WIDTH, _MARGIN, _ROW, _SIZE = 1600, 40, 46, 26
_LABELS, _LONGEST = 400, 620
_COLOURS = ("#2a6f97", "#bc6c25", "#6a994e")
_TRACK, _TEXT, _PAPER = "#e9ecef", "#212529", "#ffffff"


class Bar(Struct, frozen=True):
    """A bar of a series: its length from 0 to 1, a mark on it, the text beside it."""

    series: str
    length: float
    text: str
    mark: float | None = None


# Bars with a label in common.
Groups = Sequence[tuple[str, Sequence[Bar]]]


def check_form(path: str) -> None:
    """Raise WrongUse for a file whose extension names no form of picture that can be written."""
    Image.init()
    form = Image.registered_extensions().get(extension := os.path.splitext(path)[1].lower())
    if extension and form not in Image.SAVE:
        raise WrongUse(f"cannot write {path}: {extension} is no form of picture that Pillow writes; give FILE.png")


def draw(title: str, groups: Groups, path: str) -> None:
    """Write the picture in the format of the file's extension; each group of bars has a label."""
    series = list(dict.fromkeys(bar.series for _, bars in groups for bar in bars))
    rows = sum(len(bars) for _, bars in groups)
    height = 2 * _MARGIN + _ROW * (rows + 2) + _MARGIN // 2 * len(groups)
    picture = Image.new("RGB", (_WIDTH, height), _PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(_SIZE)
    pen.text((_MARGIN, _MARGIN), title, _TEXT, font)
    left, top = _MARGIN, _MARGIN + _ROW
    for name in series:
        pen.text((left, top), name, _colour(series, name), font)
        left += int(pen.textlength(name, font)) + _MARGIN
    top += _ROW + _MARGIN // 2
    for label, bars in groups:
        pen.text((_MARGIN, top), label, _TEXT, font)
        for bar in bars:
            left, bottom = _MARGIN + _LABELS, top + _ROW - 14
            pen.rectangle((left, top, left + _LONGEST, bottom), _TRACK)
            pen.rectangle((left, top, left + _LONGEST * min(1.0, bar.length), bottom), _colour(series, bar.series))
            if bar.mark is not None:
                place = left + _LONGEST * min(1.0, bar.mark)
                pen.rectangle((place - 2, top - 4, place + 2, bottom + 4), _TEXT)
            pen.text((left + _LONGEST + _MARGIN // 2, top), bar.text, _TEXT, font)
            top += _ROW
        top += _MARGIN // 2
    try:
        picture.save(path, None if os.path.splitext(path)[1] else "PNG")
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        raise WrongUse(f"cannot write {path}: {reason}") from error


def _colour(series: Sequence[str], name: str) -> str:
    return _COLOURS[series.index(name) % len(_COLOURS)]
