"""The import rules of docs/explanation/architecture.md, checked against the source."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "protocol" / "car_protocol"
CLIENT = ROOT / "client" / "car_client"
DOOR = ROOT / "client" / "car_http"
DAEMON = ROOT / "daemon" / "car_daemon"
BASE = ROOT / "daemon" / "car_base"
ENGINE = ROOT / "daemon" / "car_engine"
PLACER = ROOT / "daemon" / "car_placer"
PROCESSES = (DAEMON, ENGINE, PLACER)
WEB = ("starlette", "uvicorn", "httptools")
PURE = (
    "asyncio",
    "threading",
    "time",
    "socket",
    "os",
    "llama_cpp",
    "numpy",
    "uvloop",
    "psutil",
    "car_base.host.event_log",
)

# The packages of each tree from the bottom up: each imports only from lines below its own.
ORDERS = {
    BASE: (("host", "ipc", "guide"), ("capacity",)),
    DAEMON: (
        ("sockets", "gguf", "scheduler"),
        ("telemetry", "people", "ledger"),
        ("models", "connections"),
        ("config", "engines"),
        ("requests", "cluster"),
        ("methods",),
        ("lifecycle",),
        ("command",),
        ("main",),
    ),
    ENGINE: (
        ("batching", "grammar", "child"),
        ("output", "images", "stored"),
        ("prompt", "runner"),
        ("llama",),
        ("",),
    ),
}

# Folder, modules banned in it, and an exempt part of it.
RULES: list[tuple[Path, tuple[str, ...], Path | None]] = [
    (PROTOCOL, ("car_client", "car_daemon", "car_http"), None),
    (CLIENT, ("car_daemon", "uvloop", "structlog", "psutil", "llama_cpp", "numpy", *WEB), None),
    (DOOR, ("car_daemon", "uvloop", "structlog", "psutil", "llama_cpp", "numpy"), None),
    *((tree, ("car_client", "car_http", *WEB), None) for tree in (BASE, *PROCESSES)),
    *((tree, ("ray", "cryptography"), None) for tree in (BASE, DAEMON, ENGINE)),
    # Each process is a package: it imports the base, and nothing of the other processes.
    (BASE, ("car_daemon", "car_engine", "car_placer"), None),
    (DAEMON, ("car_engine", "car_placer", "llama_cpp"), None),
    (ENGINE, ("car_daemon", "car_placer"), None),
    (PLACER, ("car_daemon", "car_engine", "llama_cpp"), None),
    (ENGINE, ("llama_cpp",), ENGINE / "llama"),
    (DAEMON / "scheduler", PURE, None),
    (ENGINE / "batching", tuple(name for name in PURE if name != "numpy"), None),
    (ENGINE, ("asyncio",), None),
]


def imports(file: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize(("folder", "banned", "exempt"), RULES)
def test_a_folder_imports_none_of_its_banned_modules(
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


def test_ray_is_imported_by_its_adapter_and_the_check_of_its_head_alone() -> None:
    files = {file.name for file in PLACER.glob("*.py") for name in imports(file) if name.startswith("ray")}
    assert files == {"ray_cluster.py", "ray_head.py"}


def test_every_module_has_a_docstring() -> None:
    for package in (PROTOCOL, CLIENT, DOOR, BASE, *PROCESSES):
        for file in package.rglob("*.py"):
            assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file


def modules(package: Path) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    files = {".".join(file.relative_to(package.parent).with_suffix("").parts): file for file in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): file for name, file in files.items()}


def arrows(package: Path) -> dict[str, set[str]]:
    """Return what each module imports of its own package: in functions and for type checkers too."""
    known = modules(package)
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, file in known.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= (whole & known.keys()) | ({node.module} if whole - known.keys() else set())
    return found


def room(module: str, rooms: Collection[str]) -> str:
    """Return the package of a tree that a module belongs to: one of the rooms, "" for a module beside them."""
    name = module.partition(".")[2].partition(".")[0]
    return name if name in rooms else ""


@pytest.mark.parametrize("tree", ORDERS, ids=lambda tree: tree.name)
def test_packages_import_only_from_those_below(tree: Path) -> None:
    levels = {name: level for level, names in enumerate(ORDERS[tree]) for name in names}
    assert levels.keys() >= {folder.name for folder in tree.iterdir() if (folder / "__init__.py").exists()}
    offences = [
        f"{module} imports {other}"
        for module, others in arrows(tree).items()
        for other in others
        if module != tree.name and (inner := room(module, levels)) != (outer := room(other, levels))
        if levels[outer] >= levels[inner]
    ]
    assert offences == []


@pytest.mark.parametrize("package", [PROTOCOL, CLIENT, DOOR, BASE, *PROCESSES], ids=lambda package: package.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    graph = arrows(package)
    # Modules without imports are removed again and again: the rest is in a circle, or leads to one.
    while free := {module for module, others in graph.items() if not others}:
        graph = {module: others - free for module, others in graph.items() if module not in free}
    assert graph == {}


def test_an_engine_starts_without_an_event_loop_and_a_templates_writer() -> None:
    names = "{'asyncio', 'jinja2', 'ssl'} & sys.modules.keys()"
    code = f"import sys, car_engine.child_server, car_engine.process; print(*{names})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
