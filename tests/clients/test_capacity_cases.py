"""The capacity of the Python client, by the list of cases that the clients of all languages share."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client import AsyncClient
from tests.clients.support import ScriptedDaemon
from tests.pace import HANG_S

CASES = msgspec.json.decode((Path(__file__).parent / "cases.json").read_bytes())["cases"]

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon() -> Iterator[ScriptedDaemon]:
    """A daemon that does not run yet."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder:
        daemon = ScriptedDaemon(Path(folder))
        yield daemon
        daemon.kill()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_the_capacity_is_what_every_client_reads(case: dict[str, Any], daemon: ScriptedDaemon) -> None:
    client = AsyncClient(daemon.path)
    doing: dict[str, Callable[[], None]] = {
        "daemon": daemon.start,
        "kill": daemon.kill,
        "unload": lambda: _with_model(daemon, "unload_model"),
        "load": lambda: _with_model(daemon, "load_model"),
    }
    for step in case["steps"]:
        action, _, expected = step.partition(": ")
        if action == "client":
            await client.__aenter__()
        elif action == "close":
            await client.aclose()
        elif action == "capacity":
            await _becomes(client, daemon, expected)
        else:
            await asyncio.to_thread(doing[action])
    await client.aclose()


async def _becomes(client: AsyncClient, daemon: ScriptedDaemon, expected: str) -> None:
    if expected.endswith(" at once"):
        assert client.capacity == int(expected.removesuffix(" at once"))
        return
    figure = await asyncio.to_thread(_declared, daemon) if expected == "declared" else int(expected)
    async with asyncio.timeout(HANG_S):
        while client.capacity != figure:  # noqa: ASYNC110 - the client has no event: apps read the figure at need
            await asyncio.sleep(0.01)


def _declared(daemon: ScriptedDaemon) -> int:
    with daemon.client() as client:
        client.connect()
        return client.capacity


def _with_model(daemon: ScriptedDaemon, method: str) -> None:
    with daemon.client() as client:
        getattr(client, method)(client.models()[0].name)
