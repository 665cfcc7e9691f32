"""The import rules of docs/architecture.md, checked against the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "protocol" / "car_protocol"
CLIENT = ROOT / "client" / "car_client"
DOOR = ROOT / "client" / "car_http"
DAEMON = ROOT / "daemon" / "car_daemon"
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
    "car_daemon.host.event_log",
)

# The packages of the daemon from the bottom up: each imports only from lines below its own.
ORDER = (
    ("host", "ipc", "guide"),
    ("sockets", "gguf", "scheduler", "capacity"),
    ("telemetry",),
    ("models", "connections"),
    ("config", "engines"),
    ("requests", "cluster"),
    ("methods",),
    ("lifecycle",),
    ("command",),
    ("main",),
)
# The engine's packages likewise; they may import those below and none of the daemon's but these.
ENGINE_ORDER = (
    ("engine.batching", "engine.grammar"),
    ("engine.output", "engine.images", "engine.stored"),
    ("engine.prompt", "engine.runner"),
    ("engine.llama",),
    ("engine",),
)
# A process of its own: it imports nothing of the daemon but these.
PLACER_MAY_IMPORT = {"host", "ipc", "guide"}
ENGINE_MAY_IMPORT = {"host", "ipc", "capacity", "telemetry"}

# Folder, modules banned in it, and an exempt part of it.
RULES: list[tuple[Path, tuple[str, ...], Path | None]] = [
    (PROTOCOL, ("car_client", "car_daemon", "car_http"), None),
    (CLIENT, ("car_daemon", "uvloop", "structlog", "psutil", "llama_cpp", "numpy", *WEB), None),
    (DOOR, ("car_daemon", "uvloop", "structlog", "psutil", "llama_cpp", "numpy"), None),
    (DAEMON, ("car_client", "car_http", *WEB), None),
    (DAEMON, ("ray", "cryptography"), DAEMON / "placer"),
    (DAEMON / "placer", ("car_client", "llama_cpp"), None),
    (DAEMON, ("llama_cpp",), DAEMON / "engine" / "llama"),
    (DAEMON / "scheduler", PURE, None),
    (DAEMON / "engine" / "batching", tuple(name for name in PURE if name != "numpy"), None),
    (DAEMON / "engine", ("asyncio",), None),
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
    files = {file.name for file in (DAEMON / "placer").glob("*.py") for name in imports(file) if name.startswith("ray")}
    assert files == {"ray_cluster.py", "ray_head.py"}


def test_every_module_has_a_docstring() -> None:
    for package in (PROTOCOL, CLIENT, DOOR, DAEMON):
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


def room(module: str) -> str:
    """Return the package of the daemon that a module belongs to; the engine's have two parts."""
    parts = module.split(".")[1:]
    two = ".".join(parts[:2])
    return two if any(two in level for level in ENGINE_ORDER) else parts[0]


LEVELS = {name: level for order in (ORDER, ENGINE_ORDER) for level, names in enumerate(order) for name in names}


def is_allowed(importer: str, imported: str) -> bool:
    """Return whether a package may import from another one."""
    inner, outer = (name.partition(".")[0] == "engine" for name in (importer, imported))
    if importer == "placer":
        return imported in PLACER_MAY_IMPORT | {"placer"}
    if imported == "placer":
        return False
    if inner and not outer:
        return imported in ENGINE_MAY_IMPORT
    return importer == imported or (inner == outer and LEVELS[imported] < LEVELS[importer])


def test_packages_of_the_daemon_import_only_from_those_below() -> None:
    offences = [
        f"{module} imports {other}"
        for module, others in arrows(DAEMON).items()
        for other in others
        if module != "car_daemon" and not is_allowed(room(module), room(other))
    ]
    assert offences == []


@pytest.mark.parametrize("package", [PROTOCOL, CLIENT, DOOR, DAEMON], ids=lambda package: package.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    graph = arrows(package)
    # Modules without imports are removed again and again: the rest is in a circle, or leads to one.
    while free := {module for module, others in graph.items() if not others}:
        graph = {module: others - free for module, others in graph.items() if module not in free}
    assert graph == {}
