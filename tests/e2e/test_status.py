"""The status again and again, for everyone who asks."""

from tests.e2e.support import Daemon, Json, RawClient


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


def test_who_ends_its_subscription_is_told_no_more(client: RawClient) -> None:
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
