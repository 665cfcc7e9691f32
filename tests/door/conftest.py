"""Doors in front of real and fake daemons."""

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.door.support import DoorProcess, OfflineDoor, door_before
from tests.e2e.support import Daemon, running
from tests.pace import HANG_S

NODE_PACKAGES = ["openai@6", "@anthropic-ai/sdk@1", "ollama@0", "ai@5", "@ai-sdk/openai-compatible@1"]


@pytest.fixture
def fake(folder: Path) -> Iterator[FakeDaemon]:
    """A daemon that answers by its knobs."""
    daemon = FakeDaemon(folder / "card.sock").start()
    yield daemon
    daemon.stop()


@pytest.fixture
async def offline(fake: FakeDaemon, folder: Path) -> AsyncIterator[OfflineDoor]:
    """The application in front of the fake daemon, without a server."""
    async with OfflineDoor(fake.path, folder / "http-keys") as door:
        yield door


@pytest.fixture(scope="session")
def served() -> Iterator[Daemon]:
    """A real daemon of eight sequences."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, running(Path(name), "--capacity", "8") as daemon:
        yield daemon.ready()


@pytest.fixture(scope="session")
def door(served: Daemon) -> Iterator[DoorProcess]:
    """A door in front of the real daemon."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, door_before(Path(name), served.path) as door:
        yield door


@pytest.fixture(scope="session")
def scripted() -> Iterator[FakeDaemon]:
    """A fake daemon that stays; its knobs are reset by `script`."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        daemon = FakeDaemon(Path(name) / "card.sock").start()
        yield daemon
        daemon.stop()


@pytest.fixture(scope="session")
def scripted_door(scripted: FakeDaemon) -> Iterator[DoorProcess]:
    """A door in front of the fake daemon that stays."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, door_before(Path(name), scripted.path) as door:
        yield door


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    if done.returncode:
        pytest.skip("npm cannot install the clients: is there a registry?")
    return folder
