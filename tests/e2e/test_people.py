"""People behind a delegate of a real daemon: what is by user is by person."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import CANARY, Daemon, Json, RawClient, configured, endless, running

SYSTEM = "The rules of the house are these: knock, wait, speak softly, and never feed the cat twice. " * 3
PEOPLE = "[people.anna]\n[people.bob]\n"


@pytest.fixture(scope="module")
def house() -> Iterator[Daemon]:
    """A daemon with two people."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        with running(folder, "--capacity", "2", *configured(folder, PEOPLE)) as daemon:
            yield daemon.ready()


@pytest.fixture
def shared(house: Daemon) -> Daemon:
    """The daemon, with both people and without work."""
    now_has(house, PEOPLE)
    house.wait_until_idle()
    return house


def now_has(daemon: Daemon, people: str) -> None:
    """Change the people of a daemon."""
    configured(daemon.path.parent, people)
    with daemon.connect() as client:
        client.result("daemon/reload")


def cached(client: RawClient, **options: Any) -> int:
    params = {"prompt": f"{SYSTEM}Who?", "max_tokens": 2, "temperature": 0, **options}
    return int(client.result("infer", params)["usage"]["cached_tokens"])


def refusal(client: RawClient, method: str, params: Json) -> Json:
    request = client.send(method, params)
    error: Json = client.response(request)["error"]
    return error


def test_no_prefix_of_a_person_is_found_by_another_or_by_the_delegate(shared: Daemon) -> None:
    with shared.connect() as client:
        assert cached(client, person="anna") == 0
        assert [cached(client), cached(client, cache_salt="anna"), cached(client, person="bob")] == [0, 0, 0]
        assert cached(client, person="anna") > 100


def test_a_person_sees_and_cancels_its_own_requests_alone(shared: Daemon) -> None:
    with shared.connect() as anna, shared.connect() as bob:
        running = anna.send("infer_stream", endless(person="anna", client="secret"))
        assert anna.receive()["method"] == "infer_stream/chunk"
        (own,) = bob.result("daemon/status", {"person": "anna"})["sequences"]
        assert (own["person"], own["client"], own["id"]) == ("anna", "secret", running)
        seen = bob.result("daemon/status", {"person": "bob"})
        assert (seen["sequences"], seen["waiting"], seen["others"]["sequences"]) == ([], [], 1)
        assert "secret" not in str(seen)
        target = {"connection": own["connection"], "id": running}
        assert refusal(bob, "daemon/cancel", {**target, "person": "bob"})["code"] == 1009
        assert bob.result("daemon/cancel", {**target, "person": "anna"}) == {}
        assert anna.response(running)["error"]["code"] == -32800
        assert bob.result("daemon/cancel", {**target, "person": "anna"}) == {}, "a request that ended is ignored"


def test_what_a_person_says_of_itself_is_not_said_of_the_next_one_on_a_connection(shared: Daemon) -> None:
    with shared.connect() as client, shared.connect() as other:
        told = {"client": "diary", "tenant": "secret"}
        client.result("infer", {"prompt": CANARY, "max_tokens": 7, "ignore_eos": True, "person": "bob", **told})
        running = client.send("infer_stream", endless(person="bob", **told))
        client.first_chunk(running)
        asked = client.send("daemon/status", {"person": "anna"})
        (own,) = client.response(asked)["result"]["connections"]
        assert (own["person"], own["in_flight"], own["tokens_served"]) == ("anna", 1, 0)
        assert not own.keys() & told.keys()
        client.notify("$/cancelRequest", {"id": running})
        client.response(running)
        seen = other.result("daemon/status", {"person": "anna"})
        assert [each["tokens_served"] for each in seen["connections"] if each["person"] == "anna"] == [0, 0]


def test_a_person_supersedes_no_request_of_another_on_the_same_connection(shared: Daemon) -> None:
    with shared.connect() as client:
        first = client.send("infer_stream", endless(person="anna", supersede="key"))
        assert client.receive()["method"] == "infer_stream/chunk"
        client.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "bob", "supersede": "key"})
        client.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna", "supersede": "key"})
        assert client.response(first)["error"]["data"]["superseded"] is True


@pytest.mark.parametrize("method", ["daemon/drain", "daemon/reload"])
def test_no_person_is_an_administrator(shared: Daemon, method: str) -> None:
    with shared.connect() as client:
        assert refusal(client, method, {"person": "anna"})["code"] == 1009
        assert "/" not in client.result("models/list", {"person": "anna"})["models"][0]["path"]


def test_a_person_that_is_removed_is_refused_after_a_reload(shared: Daemon) -> None:
    with shared.connect() as client:
        assert cached(client, person="bob", cache_salt="gone") == 0
        now_has(shared, "[people.anna]\n")
        error = refusal(client, "infer", {"prompt": CANARY, "person": "bob"})
        assert (error["code"], "no such person" in error["data"]["why"]) == (1009, True)
        assert cached(client, person="anna", cache_salt="gone") == 0


def test_a_person_beyond_its_requests_at_once_is_refused_until_one_ends(shared: Daemon) -> None:
    with shared.connect() as client, shared.connect() as other:
        now_has(shared, "[people.anna]\nin_flight = 1\n[people.bob]\n")
        running = client.send("infer_stream", endless(person="anna"))
        assert client.receive()["method"] == "infer_stream/chunk"
        error = refusal(other, "infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna"})
        facts = error["data"]
        assert (error["code"], facts["reason"], facts["limit"], facts["value"], facts["used"]) == (
            1001,
            "quota",
            "in_flight",
            1,
            1,
        )
        assert other.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "bob"})
        client.result("$/cancelRequest", {"id": running})
        client.response(running)
        assert refusal(other, "infer", {"prompt": CANARY, "n": 2, "person": "anna"})["data"]["param"] == "n"
        # A refusal took no place.
        assert other.result("infer", {"prompt": CANARY, "max_tokens": 1, "person": "anna"})


def test_a_newer_request_takes_the_place_of_the_older_one_that_it_ends(shared: Daemon) -> None:
    with shared.connect() as client, shared.connect() as other:
        now_has(shared, "[people.anna]\nin_flight = 1\n[people.bob]\n")
        older = client.send("infer_stream", endless(person="anna", supersede="typing"))
        client.first_chunk(older)
        newer = {"prompt": CANARY, "max_tokens": 1, "person": "anna"}
        for key in ({}, {"supersede": "another"}):
            assert refusal(client, "infer", newer | key)["data"]["limit"] == "in_flight"
        assert refusal(other, "infer", newer | {"supersede": "typing"})["data"]["limit"] == "in_flight"
        taken = client.send("infer", newer | {"supersede": "typing"})
        assert client.response(older)["error"]["data"]["superseded"] is True
        assert "result" in client.response(taken)
