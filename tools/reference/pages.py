"""The pages with generated tables: each stands between a marker that names it and one that ends it."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs"
# The module with the tables of each page, behind a colon their name if it is not `TABLES`. The door's needs the extra
# `http`.
PAGES = {
    "reference/protocol.md": "protocol",
    "reference/configuration.md": "configuration",
    "reference/command-lines.md": "commands",
    "reference/http-endpoints.md": "http_endpoints",
    "reference/metrics.md": "metrics",
    "reference/log-events.md": "log_events",
    "explanation/architecture.md": "packages",
    "explanation/capacity.md": "policies",
    "howto/apps.md": "apps",
    "explanation/states.md": "why",
    "howto/tool-calls.md": "tool_styles",
    "howto/carctl.md": "carctl_use",
    "howto/service.md": "service",
    "howto/decide.md": "decide",
    "reference/write-a-client.md": "examples:CLIENT",
    "tutorial.md": "examples:TUTORIAL",
    "../README.md": "examples:README",
}
_PLACE = re.compile(r"<!-- table: ([a-z -]+) -->\n.*?<!-- end -->", re.DOTALL)


def text_of(name: str) -> str:
    """Return a page as it is."""
    return (FOLDER / name).read_text(encoding="utf-8")


def tables_of(name: str) -> Mapping[str, Callable[[], str]]:
    """Return the tables of a page by their names."""
    module, _, own = PAGES[name].partition(":")
    tables: Mapping[str, Callable[[], str]] = getattr(import_module(f"tools.reference.{module}"), own or "TABLES")
    return tables


def filled(name: str) -> str:
    """Return a page's text with every table as the definitions have it now."""
    tables = tables_of(name)
    return _PLACE.sub(lambda found: _marked(found[1], tables[found[1]]()), text_of(name))


def tables_in(text: str) -> list[str]:
    """Return the names of the tables that a text has."""
    return [found[1] for found in _PLACE.finditer(text)]


def _marked(name: str, table: str) -> str:
    # A line between them: without it a table is no table for every reader of Markdown.
    return f"<!-- table: {name} -->\n\n{table}\n\n<!-- end -->"
