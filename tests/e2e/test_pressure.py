"""Memory pressure moves the one value while everything runs; the memory is injected, the rest is real."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from car_base import guide
from car_base.host.memory import MemoryReading, read_memory
from car_client import AsyncClient
from car_daemon.config.settings import Flags, load_config
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon
from car_daemon.sockets.own_socket import OwnSocket
from car_protocol.conversation import Message
from tests.e2e.support import KNOWN, PATIENCE_S
from tools.random_models.hybrid import generate_short_convolution

pytestmark = pytest.mark.slow

GIB = 2**30


class Memory:
    """As much memory as the test says; keeps what was the capacity at each reading of it."""

    def __init__(self) -> None:
        self._reading = MemoryReading(16 * GIB, 8 * GIB)
        self.capacity: Callable[[], int] = lambda: 0  # of the daemon, now
        self.capacities: list[int] = []  # at each reading since the last change, before it was compared

    def set(self, available: int, some: float = 0.0) -> None:
        self._reading = MemoryReading(16 * GIB, available, some)
        self.capacities = []

    def __call__(self) -> MemoryReading:
        self.capacities.append(self.capacity())
        return self._reading


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[tuple[Memory, Path]]:
    """A daemon in this process, with a calm of half a second and a second model."""
    generate_short_convolution(states := folder / "states.gguf")
    (folder / "card.toml").write_text(
        "[pressure]\ncalm_s = 0.5\n[capacity]\nsequences = 8\n[scheduler]\nsaved_bytes = 10_000_000\n"
        f'[models.other]\npath = "{guide.PATH}"\n[models.states]\npath = "{states}"\n'
    )
    flags = Flags(config=str(folder / "card.toml"), socket=str(folder / "card.sock"))
    config = load_config(flags, {"XDG_CACHE_HOME": str(folder)})
    memory = Memory()
    own_socket = OwnSocket(config.socket)
    daemon = Daemon(config, Sockets(own_socket), Seams(memory=memory))
    gate = daemon._parts.scheduler.gate
    memory.capacity = lambda: gate.capacity("guide")
    running = asyncio.create_task(daemon.run())
    yield memory, config.socket
    daemon.stop()
    await running
    assert daemon.failure is None
    own_socket.close()


async def capacity_becomes(client: AsyncClient, capacity: int) -> None:
    """Return once the client's cached figure is that; it changes only by what the daemon pushes."""
    async with asyncio.timeout(PATIENCE_S):
        while client.capacity != capacity:
            await client.tokenize("a request of our own, since the cache has no event")


async def test_pressure_lowers_and_restores_capacity_and_harms_no_running_request(
    served: tuple[Memory, Path],
) -> None:
    memory, path = served
    async with AsyncClient(path) as client:
        known = KNOWN[:8]
        answers = [
            asyncio.create_task(client.infer(messages=[Message("user", one.question)], temperature=0)) for one in known
        ]
        await capacity_becomes(client, 8)
        memory.set(available=GIB)
        await capacity_becomes(client, 6)
        # The first reading lowered it, as each later one found.
        assert set(memory.capacities[1:]) <= {6}
        memory.set(available=GIB // 2)
        await capacity_becomes(client, 4)
        capacity = (await client.status()).capacity
        assert (capacity.pressure, capacity.declared) == ("critical", 8)
        assert [(await one).text for one in answers] == [one.answer for one in known]
        memory.set(available=8 * GIB)
        await capacity_becomes(client, 8)
        assert (await client.status()).capacity.pressure == "none"


async def test_stalled_tasks_are_pressure_too(served: tuple[Memory, Path]) -> None:
    memory, path = served
    async with AsyncClient(path) as client:
        await client.infer("Hi", max_tokens=1)
        await capacity_becomes(client, 8)
        memory.set(available=8 * GIB, some=11.0)
        await capacity_becomes(client, 6)


async def state_of(client: AsyncClient, name: str) -> str:
    """Return the state of a model."""
    return next(model.state for model in await client.models() if model.name == name)


async def test_an_idle_model_goes_when_memory_is_critical_and_the_default_one_stays(
    served: tuple[Memory, Path],
) -> None:
    memory, path = served
    async with AsyncClient(path) as client:
        for model in ("guide", "other"):
            await client.infer("Hi", max_tokens=1, model=model)
        memory.set(available=GIB // 2)
        async with asyncio.timeout(PATIENCE_S):
            while (await state_of(client, "other")) != "unloaded":
                pass
        assert (await state_of(client, "guide")) == "ready"
        await client.infer("Hi", max_tokens=1, model="other")


async def saved_bytes(client: AsyncClient, model: str) -> int:
    """Return the bytes of cells and states that the engine of a model has in host memory."""
    models = {each.name: each for each in (await client.status()).models}
    return sum(engine.saved_bytes for engine in models[model].engines)


async def test_states_in_host_memory_go_before_any_model_does_and_are_kept_again_afterwards(
    served: tuple[Memory, Path], folder: Path
) -> None:
    memory, path = served
    async with AsyncClient(path) as client:

        async def saved_after_a_turn(count: int) -> int:
            await client.infer(" ".join(str(number) for number in range(count)), max_tokens=4, model="states")
            async with asyncio.timeout(PATIENCE_S):
                while not (saved := await saved_bytes(client, "states")):
                    pass
            return saved

        assert await saved_after_a_turn(300) <= 10_000_000
        memory.set(available=int(1.5 * GIB))
        async with asyncio.timeout(PATIENCE_S):
            while await saved_bytes(client, "states"):
                pass
        assert (await state_of(client, "states")) == "ready"
        await client.infer("1 2 3", max_tokens=4, model="states")
        memory.set(available=8 * GIB)
        async with asyncio.timeout(PATIENCE_S):
            while (await client.status()).capacity.pressure != "none":
                pass
        assert await saved_after_a_turn(350) <= 10_000_000


async def test_under_pressure_requests_beyond_the_lowered_capacity_wait(served: tuple[Memory, Path]) -> None:
    memory, path = served
    async with AsyncClient(path) as client:
        await client.infer("Hi", max_tokens=1)
        memory.set(available=GIB // 2)
        await capacity_becomes(client, 4)
        running = [asyncio.create_task(client.infer("Hi", ignore_eos=True, max_tokens=400)) for _ in range(6)]
        most = 0
        while not all(one.done() for one in running):
            most = max(most, (await client.status()).capacity.in_use)
        assert most == 4


# Takes memory until less than so many bytes are left, and again whenever somebody else gives some back. No more: a
# virtual machine's kernel may return what was given back at 16 MB a second.
BALLAST = """
import mmap, select, sys
from car_base.host.memory import read_memory
left, held = int(sys.argv[1]), []
while not select.select([sys.stdin], [], [], 0.05)[0]:
    while read_memory().available >= left:
        held.append(block := mmap.mmap(-1, 1 << 24))
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
"""


@pytest.mark.alone
async def test_real_memory_that_another_program_takes_lowers_capacity_until_it_gives_it_back(folder: Path) -> None:
    before = read_memory()
    percent = 100 * before.available / before.total
    (folder / "card.toml").write_text(
        f"[pressure]\ncalm_s = 0.5\nsome_available = {percent - 4}\ncritical_available = 1\n"
        "some_stalled = 100\ncritical_stalled = 100\n[capacity]\nsequences = 8\n"
    )
    config = load_config(
        Flags(config=str(folder / "card.toml"), socket=str(folder / "card.sock")), {"XDG_CACHE_HOME": str(folder)}
    )
    own_socket = OwnSocket(config.socket)
    daemon = Daemon(config, Sockets(own_socket))
    running = asyncio.create_task(daemon.run())
    async with AsyncClient(config.socket) as client:
        await capacity_becomes(client, 8)
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", BALLAST, str(int(before.total * (percent - 8) / 100))),
            stdin=asyncio.subprocess.PIPE,
        )
        await capacity_becomes(client, 6)
        await other.communicate(b"")
        await capacity_becomes(client, 8)
    daemon.stop()
    await running
    assert daemon.failure is None
    own_socket.close()
