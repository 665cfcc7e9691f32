"""The screen of a terminal as a self-contained SVG."""

import re
from io import StringIO

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, &quot;DejaVu Sans Mono&quot;, monospace"


def drawn(picture: RenderableType, name: str, width: int, height: int) -> str:
    """Return the picture on a dark terminal of this size, under a title that is its name."""
    console = Console(record=True, file=StringIO(), width=width, height=height, force_terminal=True, _environ={})
    console.print(picture, crop=True)
    made = console.export_svg(title=name, code_format=_FORM, unique_id=re.sub(r"\W", "-", name))
    return "\n".join(line.rstrip() for line in made.splitlines() if line.strip()) + "\n"


def _form() -> str:
    """Return rich's form without the fonts that it has browsers fetch, and with the foot of the last line.

    Rich cuts what is more than three pixels below a line's letters: an underscore is.
    """
    without_faces = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    whole = without_faces.replace('height="{terminal_height}"', 'height="100%"')
    return whole.replace("Fira Code, monospace", _FONTS).replace("font-family: arial", f"font-family: {_FONTS}")


_FORM = _form()
