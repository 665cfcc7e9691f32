"""The status again and again, for everyone who asks."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.support import ROOT, Daemon, Json, RawClient, configured, endless, running
from tests.e2e.users import ALICE, BOB, connect_as, shared_daemon
from tests.pace import lateness


def statuses(client: RawClient, count: int) -> list[Json]:
    """Return the next statuses that a client is told."""
    told: list[Json] = []
    while len(told) < count:
        message = client.receive()
        if message.get("method") == "daemon/status_changed":
            told.append(message["params"])
    return told


def test_several_status_listeners_all_keep_getting_updates(daemon: Daemon) -> None:
    with daemon.connect() as first, daemon.connect() as second, daemon.connect() as third:
        for client in (first, second, third):
            status = client.result("daemon/status", {"subscribe": True, "interval_ms": 100})
            assert status["state"] == "serving"
        for client in (first, second, third):
            told = statuses(client, 3)
            assert all(status["pid"] == daemon.process.pid for status in told)
            assert told[0]["uptime_s"] < told[-1]["uptime_s"]


def test_a_subscription_that_ended_sends_no_more(client: RawClient) -> None:
    client.result("daemon/status", {"subscribe": True, "interval_ms": 100})
    statuses(client, 1)
    client.result("daemon/status", {"subscribe": False})
    client.result("infer", {"prompt": "x", "max_tokens": 30, "ignore_eos": True})
    answered = client.send("inference/capacity")
    message = client.receive()
    assert message.get("id") == answered


def test_an_interval_out_of_range_is_refused_by_name(client: RawClient) -> None:
    for interval in (99, 60_001):
        error = client.call("daemon/status", {"subscribe": True, "interval_ms": interval})["error"]
        assert (error["code"], error["data"]["param"]) == (-32602, "interval_ms")


def seen_by(client: RawClient) -> Json:
    """Return the status that a user is sent, after the same one by subscription."""
    client.result("daemon/status", {"subscribe": True, "interval_ms": 100})
    (pushed,) = statuses(client, 1)
    status = client.result("daemon/status", {"subscribe": False})
    assert pushed.keys() == status.keys()
    assert [len(pushed[name]) for name in ("sequences", "connections")] == [
        len(status[name]) for name in ("sequences", "connections")
    ]
    return status


@pytest.mark.slow
def test_a_user_is_sent_its_own_and_counts_of_others_and_an_administrator_all(folder: Path) -> None:
    with (
        shared_daemon(folder, "[capacity]\nsequences = 4\n") as daemon,
        connect_as(ALICE, daemon.path) as alice,
        connect_as(BOB, daemon.path) as bob,
        daemon.connect() as admin,
    ):
        secret = alice.send("infer_stream", endless(client="canary-5f1d label"), "canary-5f1d id")
        alice.first_chunk(secret)
        own, others, all_of_them = seen_by(alice), seen_by(bob), seen_by(admin)
    assert [(each["uid"], each["id"], each["client"]) for each in own["sequences"]] == [
        (ALICE, "canary-5f1d id", "canary-5f1d label")
    ]
    assert own["others"] == {"connections": 2, "in_flight": 0, "sequences": 0}
    assert (others["sequences"], [each["uid"] for each in others["connections"]]) == ([], [BOB])
    assert others["others"] == {"connections": 2, "in_flight": 1, "sequences": 1}
    assert str(ALICE) not in str(others)
    assert "canary" not in str(others)
    assert "others" not in all_of_them
    assert {each["uid"] for each in all_of_them["sequences"]} == {ALICE}
    assert {ALICE, BOB} <= {each["uid"] for each in all_of_them["connections"]}


def test_beyond_a_hundred_connections_the_status_has_sums(start: Callable[..., Daemon]) -> None:
    daemon = start("--capacity", "2")
    with daemon.connect() as client, ExitStack() as stack:
        for _ in range(104):
            other = stack.enter_context(daemon.connect())
            other.result("models/list")
        status = client.result("daemon/status")
        assert len(status["connections"]) == 100
        assert status["more_connections"] == {"connections": 5, "in_flight": 0, "tokens_served": 0}


@pytest.mark.slow
@pytest.mark.alone
def test_a_thousand_subscribers_delay_the_answers_of_others_by_less_than_50_ms(folder: Path) -> None:
    config = configured(folder, "[daemon]\nmax_connections = 1010\nmax_connections_per_uid = 1010\n")
    with running(folder, "--capacity", "2", *config) as daemon, daemon.ready().connect() as client:
        program = (sys.executable, "-m", "tests.e2e.subscribers", str(daemon.path), "1000")
        with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as subscribers:
            assert subscribers.stdin is not None
            assert subscribers.stdout is not None
            assert subscribers.stdout.read(1) == b"."
            took, late = [], []
            for _ in range(200):
                started = time.monotonic()
                client.result("inference/capacity")
                took.append(time.monotonic() - started)
                late.append(lateness())  # in which the answers are spread over twenty ticks, too
            lag = client.result("daemon/status")["loop_lag_ms"]
            subscribers.stdin.close()
    # The subscribers take most of a core themselves: the bound is of what is usual, not of the worst of all.
    slowness = sorted(late)[int(len(late) * 0.95)]
    assert sorted(took)[int(len(took) * 0.95)] < 0.05 * slowness, took
    assert lag < 50 * slowness
