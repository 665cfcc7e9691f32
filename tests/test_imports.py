"""Who may import what: the rules of docs/architecture.md, read from the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "protocol" / "car_protocol"
CLIENT = ROOT / "client" / "car_client"
DAEMON = ROOT / "daemon" / "car_daemon"
PURE = ("asyncio", "threading", "time", "socket", "os", "llama_cpp", "numpy", "uvloop", "structlog", "psutil")

# Folder, what is kept out of it, and what part of it the rule leaves out.
RULES: list[tuple[Path, tuple[str, ...], Path | None]] = [
    (PROTOCOL, ("car_client", "car_daemon"), None),
    (CLIENT, ("car_daemon", "uvloop", "structlog", "psutil", "llama_cpp", "numpy"), None),
    (DAEMON, ("car_client",), None),
    (DAEMON, ("llama_cpp",), DAEMON / "engine" / "llama"),
    (DAEMON / "scheduler", PURE, None),
    (DAEMON / "engine" / "batching", tuple(name for name in PURE if name != "numpy"), None),
    (DAEMON / "scheduler", ("car_daemon.engine", "car_daemon.models"), None),
    (DAEMON / "engine", ("car_daemon.scheduler", "car_daemon.models", "asyncio"), None),
]


def imports(file: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize(("folder", "banned", "exempt"), RULES)
def test_a_folder_imports_nothing_that_its_rule_keeps_out(
    folder: Path, banned: tuple[str, ...], exempt: Path | None
) -> None:
    files = [file for file in folder.rglob("*.py") if exempt is None or not file.is_relative_to(exempt)]
    assert files
    offences = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if any(name == one or name.startswith(one + ".") for one in banned)
    ]
    assert offences == []


def test_every_module_says_in_one_line_what_it_is() -> None:
    for package in (PROTOCOL, CLIENT, DAEMON):
        for file in package.rglob("*.py"):
            assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file


def test_no_module_is_longer_than_its_noun_needs() -> None:
    for package in (PROTOCOL, CLIENT, DAEMON):
        for file in package.rglob("*.py"):
            assert len(file.read_text(encoding="utf-8").splitlines()) <= 320, file


def test_the_architecture_names_the_owner_of_every_state() -> None:
    described = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    owners = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", described))
    files = [file for file in DAEMON.rglob("*.py") if "# Mutable state" in file.read_text(encoding="utf-8")]
    assert len(files) > 50
    places = {file.relative_to(DAEMON).as_posix(): file.relative_to(DAEMON).parents for file in files}
    missing = [
        path
        for path, folders in places.items()
        if path not in owners and not any(f"{folder.as_posix()}/" in owners for folder in folders)
    ]
    assert missing == []
