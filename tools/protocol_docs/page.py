"""docs/reference/protocol.md with its tables: each stands between a marker that names it and one that ends it."""

import re
from pathlib import Path

from tools.protocol_docs.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
_PLACE = re.compile(r"<!-- table: ([a-z ]+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """Return the page with every table as the definitions have it now."""
    return _PLACE.sub(lambda found: _marked(found[1]), text)


def tables_in(text: str) -> list[str]:
    """Return the names of the tables that a page has."""
    return [found[1] for found in _PLACE.finditer(text)]


def _marked(name: str) -> str:
    # A line between them: without it a table is no table for every reader of Markdown.
    return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end -->"
