"""A fake daemon for each test, on a path short enough for every platform."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import FakeDaemon


@pytest.fixture
def path() -> Iterator[Path]:
    """The path at which a test's daemon listens."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        yield Path(folder) / "card.sock"


@pytest.fixture
def daemon(path: Path) -> Iterator[FakeDaemon]:
    """A daemon that listens already."""
    fake = FakeDaemon(path).start()
    yield fake
    fake.stop()
