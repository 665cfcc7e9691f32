"""`Client.decide`: objects and plain data are the same questions, and answers are found by name."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import msgspec
import pytest

from car_client import Choice, ChoiceAnswer, Client, Level, Option, Predicate, PredicateAnswer, Score, ScoreAnswer
from car_client.options import DecideOptions
from car_protocol.conversation import Message
from car_protocol.decide import DecideParams, Question
from tests.client.fake_daemon import FakeDaemon

OBJECTS: list[Question | Mapping[str, Any]] = [
    Choice(name="team", instructions="Which?", options=[Option("billing"), Option(True)]),
    Score(name="urgency", instructions="How?", levels=[Level("low"), Level({"at": 1}), Level("high")]),
    Predicate(name="angry", instructions="Is it so?"),
]
PLAIN: list[Question | Mapping[str, Any]] = [
    {"type": "choice", "name": "team", "instructions": "Which?", "options": [{"value": "billing"}, {"value": True}]},
    {
        "type": "score",
        "name": "urgency",
        "instructions": "How?",
        "levels": [{"label": "low"}, {"label": {"at": 1}}, {"label": "high"}],
    },
    {"type": "predicate", "name": "angry", "instructions": "Is it so?"},
]


def test_objects_and_plain_data_are_the_same_questions(daemon: FakeDaemon) -> None:
    sent = []
    with Client(daemon.path) as client:
        for questions in (OBJECTS, PLAIN):
            client.decide({"ticket": 7}, questions, reproducible=True)
            sent.append(msgspec.convert(daemon.params("decide"), DecideParams))
    assert sent[0] == sent[1]
    assert sent[0].reproducible


def test_an_answer_is_found_by_its_name_and_by_its_place(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        decision = client.decide("x", OBJECTS)
    assert isinstance(decision["team"], ChoiceAnswer)
    assert isinstance(decision[1], ScoreAnswer)
    assert isinstance(decision.answers[2], PredicateAnswer)
    with pytest.raises(KeyError):
        decision["nothing"]


def test_the_options_are_those_of_the_request() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(DecideParams)}
    assert set(DecideOptions.__annotations__) - {"traceparent"} == fields - {"state", "questions", "_meta"}


def nested(levels: int) -> list[Any]:
    """Return lists inside of each other."""
    innermost: list[Any] = []
    for _ in range(levels):
        innermost = [innermost]
    return innermost


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (b"text", TypeError),
        ({"file": [bytearray(b"text")]}, TypeError),
        ({"tags": {"a", "b"}}, TypeError),
        ({"a": object()}, TypeError),
        ([1.0, float("nan")], ValueError),
        ({"depth": float("-inf")}, ValueError),
        (nested(3000), ValueError),
    ],
)
def test_a_state_that_json_has_no_form_for_is_refused_before_it_is_sent(
    state: Any, error: type[Exception], daemon: FakeDaemon
) -> None:
    """Else the questions would be about another state: bytes in base64, or null."""
    with Client(daemon.path) as client, pytest.raises(error):
        client.decide(state, OBJECTS)
    assert not any(call.method == "decide" for call in daemon.calls)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (Predicate(name="a", instructions={"limit": float("nan")}), ValueError),
        (Predicate(name="a", instructions=b"Is it so?"), TypeError),
        (Choice(name="a", instructions="?", options=[Option("b", description=float("inf")), Option("c")]), ValueError),
        (Score(name="a", instructions="?", levels=[Level("low"), Level({"at": float("nan")})]), ValueError),
        ({"type": "predicate", "name": "a", "instructions": {"is it?"}}, TypeError),
    ],
)
def test_a_question_that_json_has_no_form_for_is_refused_before_it_is_sent(
    question: Question, error: type[Exception], daemon: FakeDaemon
) -> None:
    with Client(daemon.path) as client, pytest.raises(error):
        client.decide("x", [question])
    assert not any(call.method == "decide" for call in daemon.calls)


def test_a_state_of_nothing_is_sent_for_the_daemon_to_refuse(daemon: FakeDaemon) -> None:
    with Client(daemon.path) as client:
        client.decide(None, OBJECTS)
    assert daemon.params("decide")["state"] is None


def test_a_state_may_hold_messages_and_other_objects(daemon: FakeDaemon) -> None:
    state = {"turns": [Message("user", "Hi")], "on": date(2026, 1, 31), "share": 0.5, "ids": (1, 2)}
    with Client(daemon.path) as client:
        client.decide(state, OBJECTS)
    sent = daemon.params("decide")["state"]
    assert sent["turns"][0]["content"] == "Hi"
    assert (sent["on"], sent["share"], sent["ids"]) == ("2026-01-31", 0.5, [1, 2])
