"""The capacity of the Python client, by the list of cases that the clients of all languages share."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client import AsyncClient, Client
from tests.clients.support import scripted_daemon
from tests.e2e.support import Daemon
from tests.pace import HANG_S

CASES = msgspec.json.decode((Path(__file__).parent / "cases.json").read_bytes())["cases"]

pytestmark = pytest.mark.slow


class Place:
    """A folder with a daemon that runs or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemon: Daemon | None = None
        self.path = folder / "card.sock"

    def start(self) -> None:
        """Start the daemon."""
        self._daemon = scripted_daemon(self._folder)

    def kill(self) -> None:
        """End it as kill -9 does; nothing happens if it does not run."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon = None

    def client(self) -> Client:
        """Return a blocking client of the daemon."""
        return Client(self.path, connect_timeout=HANG_S)


@pytest.fixture
def place() -> Iterator[Place]:
    """A place whose daemon does not run yet."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        place = Place(Path(folder))
        yield place
        place.kill()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_the_capacity_is_what_every_client_reads(case: dict[str, Any], place: Place) -> None:
    client = AsyncClient(place.path)
    doing: dict[str, Callable[[], None]] = {
        "daemon": place.start,
        "kill": place.kill,
        "unload": lambda: _with_model(place, "unload_model"),
        "load": lambda: _with_model(place, "load_model"),
    }
    for step in case["steps"]:
        action, _, expected = step.partition(": ")
        if action == "client":
            await client.__aenter__()
        elif action == "close":
            await client.aclose()
        elif action == "capacity":
            await _becomes(client, place, expected)
        else:
            await asyncio.to_thread(doing[action])
    await client.aclose()


async def _becomes(client: AsyncClient, place: Place, expected: str) -> None:
    if expected.endswith(" at once"):
        assert client.capacity == int(expected.removesuffix(" at once"))
        return
    figure = await asyncio.to_thread(_declared, place) if expected == "declared" else int(expected)
    async with asyncio.timeout(HANG_S):
        while client.capacity != figure:  # noqa: ASYNC110 - the client has no event: apps read the figure at need
            await asyncio.sleep(0.01)


def _declared(place: Place) -> int:
    with place.client() as client:
        client.connect()
        return client.capacity


def _with_model(place: Place, method: str) -> None:
    with place.client() as client:
        getattr(client, method)(client.models()[0].name)
