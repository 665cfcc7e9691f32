"""A seat in a network namespace of its own, and a real cut between it and its daemon. Needs root and `ip`."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from car_base.ipc.placing import HostMemory, Placed
from car_daemon.cluster.remote import RemoteEngine

pytest.importorskip("cryptography", reason="pairs need the package cryptography")

from car_placer.relay import new_pair
from tests.pace import HANG_S, lateness_beside

IP = shutil.which("ip")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(IP is None or os.getuid() != 0, reason="network namespaces need root and the command `ip`"),
]
PROGRAM = Path(__file__).parents[2] / "local_cluster.py"
GONE_S = 12.0  # of an engine whose daemon is cut off


class Network:
    """A namespace that is connected to this one by a bridge, as a machine is by a switch."""

    def __init__(self, number: int) -> None:
        name = f"c{number}ard{os.getpid()}"
        subnet = f"10.{213 + number}.{os.getpid() % 250}"
        self.namespace, self.bridge, self.here, self.there = name, f"b{name}", f"h{name}", f"t{name}"
        self.address = f"{subnet}.2"
        self._subnet = subnet

    def make(self) -> None:
        """Make the namespace and its way here; raises CalledProcessError where the kernel allows none."""
        self.ip("netns", "add", self.namespace)
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.namespace)
        self.ip("link", "set", self.here, "master", self.bridge, "up")
        self.ip("address", "add", f"{self._subnet}.1/24", "dev", self.bridge)
        self.ip("link", "set", self.bridge, "up")
        inside = ("-n", self.namespace)
        self.ip(*inside, "address", "add", f"{self.address}/24", "dev", self.there)
        for device in ("lo", self.there):
            self.ip(*inside, "link", "set", device, "up")

    def remove(self) -> None:
        """Remove all of it, as far as it is there."""
        # The way is deleted by itself, because a namespace goes later than its command returns.
        for command in (
            ("link", "delete", self.here),
            ("link", "delete", self.bridge),
            ("netns", "delete", self.namespace),
        ):
            with suppress(subprocess.CalledProcessError):
                self.ip(*command)

    def unplug(self) -> None:
        """Cut the cable: the machine's own card notices it."""
        self.ip("link", "set", self.here, "down")

    def partition(self) -> None:
        """Let the switch drop everything: nothing on either machine changes but that no packet comes."""
        self.ip("link", "set", self.here, "nomaster")

    def heal(self) -> None:
        """Connect the machine again."""
        self.ip("link", "set", self.here, "master", self.bridge, "up")

    def ip(self, *arguments: str) -> None:
        assert IP is not None
        subprocess.run([IP, *arguments], check=True, capture_output=True)


@contextmanager
def networked(number: int) -> Iterator[Network]:
    one = Network(number)
    try:
        one.make()
    except subprocess.CalledProcessError as error:
        one.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        yield one
    finally:
        one.remove()


@contextmanager
def seated(network: Network) -> Iterator[tuple[psutil.Popen, Placed]]:
    """A seat with the real relay in the namespace, which starts the real engine for its daemon."""
    pair = new_pair()
    assert IP is not None
    command = [IP, "netns", "exec", network.namespace, sys.executable, str(PROGRAM), "seat", network.address]
    process = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(pair)
    process.stdin.close()
    port = int(process.stdout.readline())
    try:
        yield process, Placed(number=1, node="n", address=network.address, port=port, pair=pair, path="/m", content="c")
    finally:
        for each in [*(process.children(recursive=True) if process.is_running() else []), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        process.stdout.close()


async def cut_off(network: Network, seat: tuple[psutil.Popen, Placed], cut: Callable[[Network], None]) -> None:
    """Cut a seat off once its engine runs; return once both ended."""
    process, placed = seat
    readings: asyncio.Queue[HostMemory] = asyncio.Queue()
    closed: list[RemoteEngine] = []
    remote = RemoteEngine(placed, asyncio.get_running_loop().time, closed.append)
    await remote.connect(lambda _: None, readings.put_nowait)
    # The second reading was sent while an engine was there.
    for _ in range(2):
        await asyncio.wait_for(readings.get(), HANG_S)
    (engine,) = process.children()
    begun = time.monotonic()
    cut(network)
    with lateness_beside() as late:
        _, left = await asyncio.to_thread(psutil.wait_procs, [engine], HANG_S)
    gone_s = time.monotonic() - begun
    print(f"{cut.__name__}: gone after {gone_s:.1f} s")
    assert not left
    assert gone_s <= GONE_S * max(late)
    network.heal()
    # The daemon's own health check ends the connection of an engine without heartbeats.
    remote.kill()
    await asyncio.wait_for(remote.wait(), HANG_S)
    assert (closed, remote.cut) == ([remote], True)
    assert await asyncio.to_thread(process.wait, HANG_S) == 0


async def test_an_engine_whose_daemon_is_cut_off_ends_within_12_s_also_if_the_network_heals_then() -> None:
    with ExitStack() as stack:
        networks = [stack.enter_context(networked(number)) for number in range(2)]
        seats = [stack.enter_context(seated(network)) for network in networks]
        cuts = (Network.unplug, Network.partition)
        await asyncio.gather(*(cut_off(*each) for each in zip(networks, seats, cuts, strict=True)))
