"""`decide` on the real daemon: what it costs, that it can be cancelled, that it is the same beside others."""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.e2e.support import Daemon, Json, endless, running

STATE = " ".join(f"Note {number} is about subject {number * 7 % 31}." for number in range(60))
STREAMS = 3


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with four sequences of 4,096 tokens."""
    with running(tmp_path_factory.mktemp("d"), "--capacity", "4", "--context-tokens", "4096") as daemon:
        yield daemon.ready()


def predicates(count: int, about: str = "note") -> list[Json]:
    """Return questions that differ in every prompt."""
    return [{"type": "predicate", "instructions": f"Is {about} {number} there?"} for number in range(count)]


def asked(state: str, questions: list[Json], **more: Any) -> Json:
    """Return the params of a decision."""
    return {"state": state, "questions": questions, **more}


def test_the_state_is_computed_once_and_each_question_costs_its_own_tokens(deciding: Daemon) -> None:
    with deciding.connect() as client:
        first, again = (client.result("decide", asked(STATE, predicates(10)))["usage"] for _ in range(2))
        # The second request finds the prefix of all in the cache, so that it computes the tails alone.
        prefix = first["computed_tokens"] - again["computed_tokens"]
        assert prefix > 500
        assert first["prompt_tokens"] == 10 * prefix + again["computed_tokens"]
        other = client.result("decide", asked(STATE, predicates(10, "subject")))["usage"]
        assert other["computed_tokens"] < 10 * 60


def test_a_decision_that_is_cancelled_between_two_questions_frees_its_lease(deciding: Daemon) -> None:
    with deciding.connect() as client:
        before = client.result("daemon/status")
        assert before["capacity"]["in_use"] == 0
        request = client.send("decide", asked(STATE, predicates(400), progress=True))
        while (message := client.receive()).get("params", {}).get("phase") != "questions":
            assert message.get("id") != request, message
        client.notify("$/cancelRequest", {"id": request})
        error = client.response(request)["error"]
        assert (error["data"]["reason"], error["data"]["started"]) == ("cancelled", True)
        deciding.wait_until_idle()


def test_reproducible_decisions_beside_streams_are_those_alone_to_the_last_bit(deciding: Daemon) -> None:
    count = int(os.environ.get("DECISIONS", "40"))
    random = Random(3)
    words = STATE.split()
    requests = [
        asked(" ".join(random.choices(words, k=random.randint(3, 60))), predicates(1, str(place)), reproducible=True)
        for place in range(count)
    ]
    with deciding.connect() as client, deciding.connect() as busy:
        alone = [client.result("decide", each)["answers"] for each in requests]
        streams = [busy.send("infer_stream", endless(seed=number)) for number in range(STREAMS)]
        for stream in streams:
            busy.first_chunk(stream)
        beside = []
        for start in range(0, count, 8):
            sent = [client.send("decide", each) for each in requests[start : start + 8]]
            beside += [client.response(each)["result"]["answers"] for each in sent]
        for stream in streams:
            busy.notify("$/cancelRequest", {"id": stream})
            busy.response(stream)
    assert beside == alone
