"""`decide` on the real daemon: what it costs, that it can be cancelled, that it is the same beside others."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.support import Daemon, Json, RawClient, endless, running
from tools.random_models.hybrid import generate_short_convolution
from tools.random_models.recurrent import generate_recurrent

STATE = " ".join(f"Note {number} is about subject {number * 7 % 31}." for number in range(60))
STREAMS = 3
AT_ONCE = 8
SEQUENCES = ("--capacity", "4", "--context-tokens", "4096")


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with four sequences of 4,096 tokens."""
    with running(tmp_path_factory.mktemp("d"), *SEQUENCES) as daemon:
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


@pytest.mark.parametrize("generate", [generate_short_convolution, generate_recurrent], ids=["hybrid", "recurrent"])
def test_a_model_with_states_computes_the_state_once_more_at_most_after_the_first_question_alone(
    tmp_path: Path, generate: Callable[[Path], object]
) -> None:
    generate(tmp_path / "states.gguf")
    with running(tmp_path, "--model", str(tmp_path / "states.gguf"), "--capacity", "2") as daemon:
        state = "note " * 130
        with daemon.ready().connect() as client:
            alone, many = (client.result("decide", asked(state, predicates(count)))["usage"] for count in (1, 30))
    assert many["computed_tokens"] <= alone["computed_tokens"] + 30 * 60


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


def test_a_decision_does_not_wait_for_the_answers_of_its_own_program(deciding: Daemon) -> None:
    with deciding.connect() as client:
        held = [client.send("infer_stream", endless(seed=number)) for number in range(4)]
        for stream in held:
            client.first_chunk(stream)
        assert client.result("inference/capacity")["in_use"] == 4
        client.result("decide", asked(STATE, predicates(2)))
        for stream in held:
            client.notify("$/cancelRequest", {"id": stream})
        assert {client.response(stream)["error"]["data"]["reason"] for stream in held} == {"cancelled"}
    deciding.wait_until_idle()


def reproducible(count: int) -> list[Json]:
    """Return requests whose states differ in their lengths."""
    random, words = Random(3), STATE.split()
    return [
        asked(" ".join(random.choices(words, k=random.randint(3, 60))), predicates(2, str(place)), reproducible=True)
        for place in range(count)
    ]


@contextmanager
def streams(daemon: Daemon) -> Iterator[None]:
    """Have streams without an end for the length of a block."""
    with daemon.connect() as client:
        begun = [client.send("infer_stream", endless(seed=number)) for number in range(STREAMS)]
        for stream in begun:
            client.first_chunk(stream)
        yield
        for stream in begun:
            client.notify("$/cancelRequest", {"id": stream})
            client.response(stream)


def answers(
    daemon: Daemon,
    requests: list[Json],
    sent: Callable[[], None] = lambda: None,
    read: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Return the answers of decisions, eight at a time.

    `sent` is called once they are on their way, `read` after each question that has others behind it.
    """
    found: list[Any] = []
    with daemon.connect() as client:
        for start in range(0, len(requests), AT_ONCE):
            ids = [client.send("decide", each) for each in requests[start : start + AT_ONCE]]
            sent()
            results: dict[Any, Json] = {}
            while len(results) < len(ids):
                message = client.receive()
                progress = message.get("params", {})
                if progress.get("phase") == "questions" and progress["done"] < progress["total"]:
                    read()
                elif "id" in message:
                    results[message["id"]] = message["result"]
            found += [results[each]["answers"] for each in ids]
    return found


def engine_of(daemon: Daemon) -> Json:
    """Return what the status says of the engine."""
    with daemon.connect() as client:
        engine: Json = client.result("daemon/status")["models"][0]["engines"][0]
    return engine


def test_reproducible_decisions_are_the_same_to_the_last_bit_wherever_they_run(
    deciding: Daemon, tmp_path: Path
) -> None:
    requests = reproducible(int(os.environ.get("DECISIONS", "40")))
    with deciding.connect() as client:
        alone = [client.result("decide", each)["answers"] for each in requests]
        with streams(deciding):
            assert answers(deciding, requests) == alone, "beside streams"
            # Urgent requests take the sequence that the streams leave, between the questions of whoever has it.
            parked = [each | {"priority": "throughput", "cache_salt": "parked", "progress": True} for each in requests]
            assert answers(deciding, parked, read=lambda: urgent(client)) == alone, "parked"
            engine = engine_of(deciding)
            assert engine["restored_tokens"] + engine["recomputed_tokens"] > 0
    with deciding.connect() as client:

        def kill() -> None:
            if engine_of(deciding)["restarts"] == engine["restarts"]:
                while any(each["awaits"] == "prompt" for each in client.result("daemon/status")["waiting"]):
                    pass
                deciding.engine().kill()

        assert answers(deciding, [each | {"cache_salt": "killed"} for each in requests], kill) == alone, "killed"
        assert engine_of(deciding)["restarts"] > engine["restarts"]
    with running(tmp_path, *SEQUENCES) as again:
        assert answers(again.ready(), requests) == alone, "after a restart"


def test_renaming_reordering_and_adding_questions_changes_no_bit_of_a_reproducible_answer(deciding: Daemon) -> None:
    choice: Json = {
        "type": "choice",
        "instructions": "",
        "options": [{"value": "a"}, {"value": "ab", "description": "a"}],
    }
    score: Json = {"type": "score", "instructions": {"ü": "🎈"}, "levels": [{"label": "same"}] * 3}
    questions = [choice, score, *predicates(3)]
    others = [
        *reversed([each | {"name": f"other {place}"} for place, each in enumerate(questions)]),
        *predicates(4, "x"),
    ]

    def read(asked_now: list[Json]) -> list[Any]:
        answers = client.result("decide", asked(STATE, asked_now, reproducible=True))["answers"]
        return [(each["probabilities"], each["mass"]) for each in answers]

    with deciding.connect() as client:
        alone = [read([each])[0] for each in questions]
        assert read(questions) == alone
        assert read(others)[: len(questions)] == alone[::-1]


def urgent(client: RawClient) -> None:
    """Run an urgent request, for which another one is parked."""
    client.result("infer", {"prompt": "Urgent", "max_tokens": 2, "ignore_eos": True})
