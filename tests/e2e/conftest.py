"""Daemons that tests share."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.support import Daemon, RawClient, running


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons in the folder; one that a test leaves running is killed."""
    daemons = []

    def start_one(*arguments: str, under: Sequence[str] = (), **environment: str) -> Daemon:
        daemons.append(Daemon(folder, *arguments, under=under, **environment))
        return daemons[-1]

    yield start_one
    for daemon in daemons:
        daemon.kill()


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A daemon of eight sequences."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, running(Path(name), "--capacity", "8") as daemon:
        daemon.connect().close()  # it listens: the clients wait for that for five seconds only
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    """A connection; what a test leaves running is gone before the next one."""
    with daemon.connect() as client:
        yield client
    daemon.wait_until_idle()


@pytest.fixture(scope="session")
def small_daemon() -> Iterator[Daemon]:
    """A daemon of two sequences."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, running(Path(name), "--capacity", "2") as daemon:
        daemon.connect().close()  # it listens: the clients wait for that for five seconds only
        yield daemon


@pytest.fixture
def small(small_daemon: Daemon) -> Iterator[RawClient]:
    """A connection to the small daemon."""
    with small_daemon.connect() as client:
        yield client
    small_daemon.wait_until_idle()
