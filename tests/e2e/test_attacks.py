"""Tricks of one user against another: fresh labels, floods, a stuck model, a full queue."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.e2e.pool import short, write_models
from tests.e2e.support import Daemon, Json, RawClient, endless
from tests.e2e.users import ALICE, BOB, connect_as, shared_daemon

pytestmark = pytest.mark.slow

# So many requests of Alice may be answered while one of Bob's is open: two that run when it comes, others that take
# their places while it is prepared, and one that runs beside it. By order of arrival it would be all of them.
MOST_PASSED = 8
MOST_IN_FLIGHT = 64
ENOUGH = 20


class Flood:
    """A connection with as many requests in flight as given, each followed by the next once it is answered."""

    def __init__(self, client: RawClient, in_flight: int, params: Callable[[int], Json]) -> None:
        self._client = client
        self._in_flight = in_flight
        self._params = params
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[Json] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        sent = 0
        while not self._over.is_set():
            while sent - len(self.answers) < self._in_flight:
                self._client.send("infer", self._params(sent))
                sent += 1
            self.answers.append(self._client.receive())


def times(client: RawClient, params: Json, count: int = ENOUGH) -> list[float]:
    """Return how long requests take, one after the other, in order of length; all have to be answered."""
    took = []
    for _ in range(count):
        started = time.monotonic()
        client.result("infer", params)
        took.append(time.monotonic() - started)
    return sorted(took)


def passed(daemon: Daemon, client: RawClient, params: Json) -> list[int]:
    """Return how many requests of others were answered while each of some requests was open, in order of number."""
    found = []
    with daemon.connect() as admin:
        for _ in range(ENOUGH):
            before = admin.result("daemon/status")["totals"]["completed"]
            client.result("infer", params)
            found.append(admin.result("daemon/status")["totals"]["completed"] - before - 1)
    return sorted(found)


def p95(found: Sequence[float]) -> float:
    """Return the 95th percentile of figures in order."""
    return found[round(0.95 * (len(found) - 1))]


def assert_felt_nowhere(client: RawClient, params: Json, others: Callable[[], AbstractContextManager[object]]) -> None:
    """Check that requests take as long beside those of others as alone; whoever delays them does so each time."""
    found = []
    for _ in range(5):
        alone = times(client, params)
        with others():
            took = times(client, params)
        if p95(took) < 2 * p95(alone) + 0.1:
            return
        found.append((alone, took))
    raise AssertionError(found)


def of_bob(**more: object) -> Json:
    """Return the params of Bob's request of eight tokens."""
    return endless(max_tokens=8, **more)


@contextmanager
def standing(daemon: Daemon, uid: int, requests: int, params: Json) -> Iterator[list[RawClient]]:
    """Have requests of a user that were all sent and are not read."""
    with ExitStack() as stack:
        clients = []
        for first in range(0, requests, MOST_IN_FLIGHT):
            client = stack.enter_context(connect_as(uid, daemon.path))
            clients.append(client)
            for _ in range(min(MOST_IN_FLIGHT, requests - first)):
                client.send("infer", params)
        yield clients


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon of two sequences that Alice and Bob use."""
    with (
        tempfile.TemporaryDirectory(prefix="card-") as name,
        shared_daemon(Path(name), "[capacity]\nsequences = 2\n") as daemon,
    ):
        yield daemon


@pytest.fixture
def bob(daemon: Daemon) -> Iterator[RawClient]:
    """A connection of Bob's; what a test leaves running is gone before the next one."""
    with connect_as(BOB, daemon.path) as client:
        yield client
    daemon.wait_until_idle()


def test_a_fresh_label_with_each_request_gains_nothing_from_another_user(daemon: Daemon, bob: RawClient) -> None:
    def relabelled(number: int) -> Json:
        return endless(max_tokens=60, client=f"label {number}")

    with Flood(connect_as(ALICE, daemon.path), 40, relabelled) as flood:
        found = passed(daemon, bob, of_bob())
    assert p95(found) <= MOST_PASSED, found
    assert all("result" in answer for answer in flood.answers)


@pytest.mark.parametrize("requests", [320, 6400])
def test_requests_of_one_user_before_another_s_do_not_delay_it(daemon: Daemon, bob: RawClient, requests: int) -> None:
    with standing(daemon, ALICE, requests, endless(max_tokens=60)):
        found = passed(daemon, bob, of_bob())
    assert p95(found) <= MOST_PASSED, found


def test_background_work_of_one_user_does_not_delay_that_of_another(daemon: Daemon, bob: RawClient) -> None:
    with standing(daemon, ALICE, 320, endless(max_tokens=60, priority="throughput")):
        found = passed(daemon, bob, of_bob(priority="throughput"))
    assert p95(found) <= MOST_PASSED, found


@pytest.fixture
def pair(folder: Path) -> Iterator[Daemon]:
    """A daemon of models `a` and `b`."""
    config = write_models(folder, "ab").read_text()
    with shared_daemon(folder, config) as daemon:
        yield daemon


@contextmanager
def stuck(daemon: Daemon, requests: int, params: Json) -> Iterator[None]:
    """Have the engine of `a` stopped, and requests of Alice's for it."""
    with daemon.connect() as client:
        for model in "ab":
            client.result("infer", short(model))
        models = client.result("daemon/status")["models"]
    (pid,) = (engine["pid"] for model in models if model["name"] == "a" for engine in model["engines"])
    engine = psutil.Process(pid)
    engine.suspend()
    try:
        with standing(daemon, ALICE, requests, params):
            yield
    finally:
        if engine.is_running():
            engine.resume()


@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_70_requests_for_a_stuck_model_do_not_delay_an_idle_one(pair: Daemon, uid: int) -> None:
    with connect_as(uid, pair.path) as client:
        assert_felt_nowhere(client, short("b", max_tokens=8), lambda: stuck(pair, 70, short("a")))


def test_long_requests_for_a_stuck_model_that_fill_the_queue_do_not_delay_an_idle_one(pair: Daemon) -> None:
    long = short("a", prompt="a " * 3_500_000)
    with connect_as(BOB, pair.path) as bob:
        assert_felt_nowhere(bob, short("b", max_tokens=8), lambda: stuck(pair, 12, long))


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_a_full_queue_drops_requests_of_the_user_that_filled_it(folder: Path, overflow: str) -> None:
    config = f'[capacity]\nsequences = 1\n[queue]\nlimit = 4\noverflow = "{overflow}"\n'
    with (
        shared_daemon(folder, config) as daemon,
        connect_as(BOB, daemon.path) as bob,
        Flood(connect_as(ALICE, daemon.path), 40, lambda _: endless(max_tokens=60)) as flood,
    ):
        for _ in range(ENOUGH):
            bob.result("infer", of_bob())
    assert {answer["error"]["data"]["reason"] for answer in flood.answers if "error" in answer} == {"overloaded"}
