"""Docstrings name their subject, and the client's say what goes in and what may be raised."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = [ROOT / "daemon", ROOT / "client", ROOT / "protocol"]
RIDDLE = re.compile(r"(Who|What|Those|So many)\b")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield every docstring of a tree with its place."""
    for file in sorted(tree.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_no_docstring_begins_with_a_riddle(tree: Path) -> None:
    found = list(docstrings(tree))
    assert found
    assert [f"{place}: {text.splitlines()[0]}" for place, text in found if RIDDLE.match(text)] == []
