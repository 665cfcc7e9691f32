"""The table of packages: the folders in their order of imports, each with its docstring."""

import ast
from collections.abc import Iterator

from tests.test_imports import BASE, DAEMON, ENGINE, ORDERS
from tools.reference.protocol import table


def packages() -> str:
    """Return the packages of the daemon's processes, each below the packages that it may import."""
    return table(("package", "content"), _rows())


def _rows() -> Iterator[tuple[str, str]]:
    for tree in (BASE, DAEMON, ENGINE):
        for name in (name for line in ORDERS[tree] for name in line):
            file = tree / name / "__init__.py"
            if name and file.exists():
                said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
                yield f"`{tree.name}/{name}/`", said.partition("\n\n")[0].replace("\n", " ").rstrip(".")


TABLES = {"packages": packages}
