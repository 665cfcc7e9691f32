"""Engines that Ray places on two nodes of this machine: the real daemon, placer, seats and engines."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from car_base.ipc.placing import BUILT_IN, Join, Place, schema_hash
from car_daemon.cluster.placer import Placer
from car_daemon.engines.link import NoPlace
from car_protocol import __version__
from tests.e2e.placed import big, placed, until_up
from tests.e2e.support import LONG, PATIENCE_S, ROOT, Daemon, endless, greedy

pytest.importorskip("ray", reason="engines on other machines need the package ray: card-daemon[cluster]")
pytestmark = pytest.mark.slow
Json = dict[str, Any]
STREAMS = 8


class RayNodes:
    """The process of a local Ray cluster."""

    def __init__(self, folder: Path, token: Path | None) -> None:
        self.folder = str(folder)
        self.token = token
        script = ROOT / "tests" / "ray_nodes.py"
        with (folder / "ray.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(folder), str(token or "")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.address = self._line()

    def do(self, command: str) -> None:
        """Change the cluster."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._line() == "done"

    def stop(self) -> None:
        """End all of its processes."""
        # Closes the pipes, and returns once the process ended.
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            # Ray itself prints too.
            if (text := line.strip()) == "done" or text.rpartition(":")[2].isdigit():
                return text
        raise AssertionError("the cluster ended")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """A cluster with the nodes a and b, each of two cores."""
    with tempfile.TemporaryDirectory(prefix="card-", ignore_cleanup_errors=True) as name:
        token = Path(name) / "token"
        token.write_text("5ca1ab1e" * 8)
        cluster = RayNodes(Path(name), token)
        for label in "ab":
            cluster.do(f"add {label}")
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def on_ray(
    folder: Path, nodes: RayNodes, model: str = "", *, replicas: int = 2, up: int = 2, token: Path | None = None
) -> Iterator[Daemon]:
    """Run a daemon with placed engines, once `up` of them are up."""
    cluster = f'address = "{nodes.address}"\ntoken = "{token or nodes.token}"\nplace_timeout_s = 5'
    with placed(folder, cluster, model, up=up, replicas=replicas) as daemon:
        yield daemon


def cluster_of(daemon: Daemon) -> Json:
    with daemon.connect() as client:
        cluster: Json = client.result("daemon/status")["cluster"]
        return cluster


def until_waiting(daemon: Daemon, words: str) -> str:
    """Return the reason for which the model waits, once its text has these words."""
    with daemon.connect() as client:
        client.result("daemon/status", {"subscribe": True, "interval_ms": 100})
        while words not in (why := str(big(client).get("waiting_for", ""))):
            client.receive()
        return why


def engines_by_node(daemon: Daemon) -> list[int]:
    return sorted(node["engines"] for node in cluster_of(daemon)["nodes"] if node["alive"] and node["cpus"])


def seats(nodes: RayNodes) -> list[psutil.Process]:
    """Return the cluster's seats that have an engine, which are those of the one daemon that runs."""
    every = [each for each in psutil.process_iter(["cmdline"]) if "ray::SeatActor" in (each.info["cmdline"] or [""])[0]]
    ours = [each for each in every if nodes.folder in " ".join(_raylet_of(each))]
    return [each for each in ours if each.children()]


def _raylet_of(seat: psutil.Process) -> list[str]:
    raylet = seat.parent()
    return [] if raylet is None else raylet.cmdline()


def test_engines_are_spread_over_the_nodes_and_their_answers_are_the_taught_ones(folder: Path, nodes: RayNodes) -> None:
    with on_ray(folder, nodes) as daemon, daemon.connect() as client:
        assert engines_by_node(daemon) == [1, 1]
        assert client.result("inference/capacity")["capacity"] == 8
        requests = [(known, client.send("infer", greedy(known))) for known in LONG[:STREAMS]]
        for known, request in requests:
            assert client.response(request)["result"]["text"] == known.answer
        cluster = cluster_of(daemon)
        assert (cluster["address"], cluster["ray"].startswith("2."), "reason" in cluster) == (
            nodes.address,
            True,
            False,
        )


def test_engines_fill_a_node_first_where_they_are_not_spread(folder: Path, nodes: RayNodes) -> None:
    with on_ray(folder, nodes, "spread = false\n", replicas=3, up=3) as daemon:
        assert engines_by_node(daemon) == [1, 2]


def test_engines_that_must_be_apart_wait_for_a_node_of_their_own(folder: Path, nodes: RayNodes) -> None:
    with on_ray(folder, nodes, 'spread = "strict"\n', replicas=3) as daemon:
        assert "has an engine of this model already" in until_waiting(daemon, "already")
        assert engines_by_node(daemon) == [1, 1]


def test_engines_go_to_nodes_with_their_labels_and_wait_for_more_of_them(folder: Path, nodes: RayNodes) -> None:
    text = 'needs = { cpus = 2, labels = { pool = "b" } }\n'
    with on_ray(folder, nodes, text, up=1) as daemon:
        why = until_waiting(daemon, "free now")
        assert why.startswith("no node has 2 CPU free now")
        with daemon.connect() as client:
            assert big(client)["state"] == "ready"


def test_a_killed_raylet_costs_its_own_requests_and_its_engine_is_placed_elsewhere(
    folder: Path, nodes: RayNodes
) -> None:
    nodes.do("add c")
    text = 'needs = { cpus = 2, labels = { pool = "in(a, c, d)" } }\nthreads = 1\n'
    with on_ray(folder, nodes, text) as daemon, daemon.connect() as client:
        assert engines_by_node(daemon) == [0, 1, 1]
        nodes.do("add d")
        streams = [client.send("infer_stream", endless()) for _ in range(STREAMS)]
        for stream in streams:
            client.first_chunk(stream)
        nodes.do("kill c")
        until_up(daemon, 1)
        until_up(daemon, 2)
        for stream in streams:
            client.notify("$/cancelRequest", {"id": stream})
        reasons = [client.response(stream)["error"]["data"]["reason"] for stream in streams]
        assert (reasons.count("engine_lost"), reasons.count("cancelled")) == (4, 4)
        assert sum(engine["restarts"] for engine in big(client)["engines"]) == 1
        nodes.do("kill d")


def test_a_placer_that_is_killed_under_load_loses_no_request_and_is_started_when_needed(
    folder: Path, nodes: RayNodes
) -> None:
    with on_ray(folder, nodes) as daemon, daemon.connect() as client:
        streams = [client.send("infer", greedy(known)) for known in LONG[:STREAMS]]
        first = cluster_of(daemon)["placer_pid"]
        psutil.Process(first).kill()
        for known, stream in zip(LONG, streams, strict=False):
            assert client.response(stream)["result"]["text"] == known.answer
        seats(nodes)[0].kill()
        until_up(daemon, 1)
        until_up(daemon, 2)
        assert cluster_of(daemon)["placer_pid"] not in (first, None)


def test_no_seat_outlives_a_daemon_that_is_killed(folder: Path, nodes: RayNodes) -> None:
    with on_ray(folder, nodes) as daemon:
        mine = seats(nodes)
        assert len(mine) == 2
        daemon.kill()
        _, left = psutil.wait_procs(mine, timeout=PATIENCE_S)
        assert left == []


@pytest.mark.parametrize(
    ("text", "words"), [("0ddba11" * 9, "is not that of the cluster"), (None, "is missing or empty")]
)
def test_without_the_token_nothing_is_placed_and_the_reason_is_told(
    folder: Path, nodes: RayNodes, text: str | None, words: str
) -> None:
    token = folder / "token"
    if text is not None:
        token.write_text(text)
    with on_ray(folder, nodes, token=token, up=0) as daemon:
        assert "copy the head's there" in until_waiting(daemon, words)
        assert words in cluster_of(daemon)["reason"]
        assert daemon.process.poll() is None


async def placing(nodes: RayNodes, *, version: str = __version__, schema: str | None = None) -> str:
    """Return why a daemon of another version gets no seat."""
    join = Join(
        address=nodes.address,
        token=str(nodes.token),
        daemon=f"test-{os.getpid()}",
        version=version,
        schema=schema or schema_hash(),
    )
    placer = Placer(join, time.monotonic)
    try:
        with pytest.raises(NoPlace) as none:
            await placer.place(Place(number=0, model="m", path=BUILT_IN), True)
        assert len(placer.seats.avoided(time.monotonic())) == 1
        return str(none.value)
    finally:
        await placer.stop()


def test_another_version_or_build_on_a_node_is_refused_by_name(nodes: RayNodes) -> None:
    why = asyncio.run(placing(nodes, version="9.9"))
    assert f"card {__version__} is installed there, 9.9 here" in why
    assert "of another build with other frames" in asyncio.run(placing(nodes, schema="other"))


def test_a_cluster_without_a_token_is_refused(folder: Path) -> None:
    cluster = RayNodes(folder, None)
    try:
        token = folder / "token"
        token.write_text("5ca1ab1e" * 8)
        with on_ray(folder, cluster, token=token, up=0) as daemon:
            assert "takes clients without a token" in until_waiting(daemon, "without a token")
    finally:
        cluster.stop()


def test_a_killed_head_leaves_running_engines_at_work(folder: Path, nodes: RayNodes) -> None:
    with on_ray(folder, nodes) as daemon, daemon.connect() as client:
        nodes.do("head")
        seats(nodes)[0].kill()
        until_waiting(daemon, "Ray's head takes no order now: start it")
        requests = [(known, client.send("infer", greedy(known))) for known in LONG[:STREAMS]]
        for known, request in requests:
            assert client.response(request)["result"]["text"] == known.answer
