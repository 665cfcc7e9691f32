"""The Python client, by the list of cases that the clients of all languages share."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client import AsyncClient, AsyncStream, Client, RequestCancelled
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
async def test_a_client_does_what_every_client_does(case: dict[str, Any], place: Place) -> None:
    client = AsyncClient(place.path)
    calls = Calls(client)
    steps: dict[str, Callable[[str], Awaitable[object]]] = {
        "daemon": lambda _: asyncio.to_thread(place.start),
        "kill": lambda _: asyncio.to_thread(place.kill),
        "unload": lambda _: asyncio.to_thread(_with_model, place, "unload_model"),
        "load": lambda _: asyncio.to_thread(_with_model, place, "load_model"),
        "client": lambda _: client.__aenter__(),
        "close": lambda _: client.aclose(),
        "capacity": lambda expected: _becomes(client, place, expected),
        "answered": lambda number: calls.answered(int(number)),
        "begin": lambda number: calls.begin(int(number)),
        "in flight": lambda number: calls.in_flight(int(number)),
        "cancel": lambda _: calls.cancel(),
    }
    for step in case["steps"]:
        action, _, argument = step.partition(": ")
        async with asyncio.timeout(HANG_S):
            await steps[action](argument)
    await client.aclose()


class Calls:
    """Many calls of one client at once."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._begun: dict[AsyncStream, asyncio.Task[list[Any]]] = {}  # with the tasks that read them

    async def answered(self, number: int) -> None:
        """Make calls at once, which are all answered."""
        answers = await asyncio.gather(*(self._client.infer(f"{each}", max_tokens=1) for each in range(number)))
        assert [answer.text.strip() for answer in answers] == [f"{each}" for each in range(number)]

    async def begin(self, number: int) -> None:
        """Begin streams, which read on."""

        async def read(stream: AsyncStream) -> list[Any]:
            return [chunk async for chunk in stream]

        for each in range(number):
            stream = self._client.infer_stream(f"{each}", max_tokens=4000)
            self._begun[stream] = asyncio.create_task(read(stream))

    async def in_flight(self, number: int) -> None:
        """Wait until the daemon has that many requests; the same client is told so."""
        while (await self._client.status()).totals.in_flight != number:  # noqa: ASYNC110 - the figure has no event
            await asyncio.sleep(0.01)

    async def cancel(self) -> None:
        """Cancel the streams, which all end as cancelled."""
        for stream in self._begun:
            stream.cancel()
        ends = await asyncio.gather(*self._begun.values(), return_exceptions=True)
        assert [type(end) for end in ends] == [RequestCancelled] * len(self._begun)


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
