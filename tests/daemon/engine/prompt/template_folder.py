"""The chat templates of llama.cpp's `models/templates`, where they are at hand.

They are in the source distribution of llama-cpp-python: CARD_TEMPLATES names that archive, or a folder of templates.
Without it a folder `shared/vectors/templates` beside the repository counts.
"""

import os
import tarfile
from functools import cache
from pathlib import Path

VARIABLE = "CARD_TEMPLATES"
_SHARED = Path(__file__).parents[5] / "shared" / "vectors" / "templates"
_INSIDE = "/models/templates/"


@cache
def template_sources() -> dict[str, str]:
    """Return the templates by their names without `.jinja`, empty where they are not at hand."""
    place = Path(os.environ.get(VARIABLE) or _SHARED)
    if place.is_file():
        return _from_archive(place)
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(place.rglob("*.jinja"))}


def _from_archive(archive: Path) -> dict[str, str]:
    sources = {}
    with tarfile.open(archive) as members:
        for member in members:
            file = members.extractfile(member) if _INSIDE in member.name and member.name.endswith(".jinja") else None
            if file is not None:
                sources[Path(member.name).stem] = file.read().decode()
    return sources
