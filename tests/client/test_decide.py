"""`Client.decide`: objects and plain data are the same questions, and answers are found by name."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from car_client import Choice, ChoiceAnswer, Client, Level, Option, Predicate, PredicateAnswer, Score, ScoreAnswer
from car_client.options import DecideOptions
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
