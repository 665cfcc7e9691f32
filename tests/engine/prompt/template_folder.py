"""The chat templates of llama.cpp's `models/templates`, where they are at hand.

CARD_TEMPLATES names a folder of them; without it a folder `shared/vectors/templates` beside the repository counts, then
what `make templates` fetched.
"""

import os
from functools import cache
from pathlib import Path

from tools.chat_templates import FOLDER

MISSING = "llama.cpp's templates are missing: make templates"
_SHARED = Path(__file__).parents[4] / "shared" / "vectors" / "templates"


@cache
def template_sources() -> dict[str, str]:
    """Return the templates by their names without `.jinja`, empty where they are not at hand."""
    named = os.environ.get("CARD_TEMPLATES")
    place = Path(named) if named else _SHARED if _SHARED.exists() else FOLDER
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(place.rglob("*.jinja"))}
