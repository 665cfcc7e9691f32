"""macOS without a Mac: every module imports there, and calls that only Linux has are guarded."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / place for place in ("protocol", "client", "daemon")]
# What macOS' Python lacks.
LINUX_ONLY = {
    "os": (
        "sched_getaffinity",
        "sched_setaffinity",
        "pidfd_open",
        "posix_fadvise",
        "memfd_create",
        "O_PATH",
        "eventfd",
    ),
    "socket": ("SO_PEERCRED", "AF_NETLINK", "SO_BINDTODEVICE"),
    "select": ("epoll",),
    "resource": ("prlimit",),
}
# Modules whose callers ask for Linux first.
GUARDED_BY_CALLERS = {"kernel_sandbox.py": "engine/confinement.py and command.py use it where Landlock is"}
PROGRAM = """
import importlib.util, os, pkgutil, resource, select, socket, sys
import psutil, sysconfig  # libraries with parts of their own for each platform
sysconfig.get_config_vars()
sys.platform = "darwin"
for module, names in {lacking!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
cluster = ("car_placer.ray_cluster", "car_placer.ray_head")
extra = () if importlib.util.find_spec("ray") else cluster
for package in ("car_protocol", "car_client", "car_http", "car_daemon"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name in extra:
            continue
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""


def test_every_module_imports_where_linux_calls_are_missing() -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("starlette")
    program = PROGRAM.format(lacking=LINUX_ONLY)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def linux_calls() -> Iterator[tuple[Path, str]]:
    """Yield the files that use a name that only Linux has."""
    names = {f"{module}.{name}" for module, listed in LINUX_ONLY.items() for name in listed}
    for path in (path for folder in SOURCES for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found = f"{node.value.id}.{node.attr}"
                if found in names:
                    yield path, found


def test_a_call_that_only_linux_has_stands_beside_a_look_at_the_platform() -> None:
    found = list(linux_calls())
    assert found
    for path, name in found:
        text = path.read_text(encoding="utf-8")
        guarded = "sys.platform" in text or "hasattr(" in text or path.name in GUARDED_BY_CALLERS
        assert guarded, f"{path.relative_to(ROOT)} uses {name}"
