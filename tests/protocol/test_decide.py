"""The params of `decide`: each fault names its path, has both numbers and says what to do."""

import json
from typing import Any

import pytest

from car_protocol.decide import DecideParams
from car_protocol.errors import RpcError
from car_protocol.params import decode_params

CHOICE = {"type": "choice", "instructions": "Which?", "options": [{"value": "a"}, {"value": "b"}]}
SCORE = {"type": "score", "instructions": "How much?", "levels": [{"label": "little"}, {"label": "much"}]}
PREDICATE = {"type": "predicate", "instructions": "Is it so?"}


def params(**members: Any) -> DecideParams:
    """Return decoded params, by default of one question about a short state."""
    return decode_params(DecideParams, json.dumps({"state": "x", "questions": [CHOICE], **members}).encode())


def fault(**members: Any) -> tuple[str, str]:
    """Return the path and the reason of a refusal."""
    with pytest.raises(RpcError) as caught:
        params(**members)
    assert caught.value.reason == "invalid_params"
    return caught.value.data["param"], caught.value.data["why"]


def choice_of(count: int) -> dict[str, Any]:
    """Return a choice of so many options."""
    return CHOICE | {"options": [{"value": str(number)} for number in range(count)]}


@pytest.mark.parametrize(
    ("members", "path", "words"),
    [
        ({"state": ""}, "state", ["empty"]),
        ({"state": None}, "state", ["empty"]),
        ({"state": []}, "state", ["empty"]),
        ({"state": {}}, "state", ["empty"]),
        ({"state": [{"role": "user", "content": ""}]}, "state", ["empty"]),
        ({"state": [{"role": "user", "content": [{"type": "film"}]}]}, "state[0].content[0].type", ["no message"]),
        ({"state": 2**70}, "state", ["64 bits", "as a text"]),
        ({"state": {"orders": [{"id": 2**64}]}}, "state", ["64 bits", "as a text"]),
        ({"questions": [PREDICATE | {"true": {"below": -(2**63) - 1}}]}, "questions[0].true", ["64 bits"]),
        ({"questions": []}, "questions", ["0 questions", "at least 1"]),
        ({"questions": [PREDICATE] * 401}, "questions", ["401", "at most 400", "second request"]),
        ({"questions": [CHOICE, CHOICE | {"name": "0"}]}, "questions[1].name", ["questions[0]"]),
        ({"questions": [CHOICE | {"type": "box"}]}, "questions[0].type", ["choice or score or predicate"]),
        ({"questions": [{"instructions": "?"}]}, "questions[0].type", ["`type`"]),
        ({"questions": [SCORE, choice_of(256)]}, "questions[1].options", ["256", "at most 255", "two steps"]),
        ({"questions": [choice_of(1)]}, "questions[0].options", ["1 options", "at least 2"]),
        (
            {"questions": [CHOICE | {"options": [{"value": True}, {"value": True}]}]},
            "questions[0].options[1].value",
            ["option 0", "leave one out"],
        ),
        ({"questions": [CHOICE | {"options": [{"value": 1}, {"value": 2}]}]}, "questions[0].options[0].value", ["int"]),
        ({"questions": [SCORE | {"levels": [{"label": 1}] * 11}]}, "questions[0].levels", ["11", "at most 10"]),
        ({"questions": [SCORE | {"instructions": None}]}, "questions[0].instructions", ["null"]),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", ["describe"]),
        ({"questions": "x"}, "questions", ["array"]),
        ({"questions": [{"type": "choice", "instructions": "?"}]}, "questions[0].options", ["`options`"]),
        ({"questions": [CHOICE, CHOICE | {"options": [{}, {}]}]}, "questions[1].options[0].value", ["`value`"]),
        ({"questions": [5]}, "questions[0]", ["object"]),
        ({"questions": [CHOICE | {"options": ["a", "b"]}]}, "questions[0].options[0]", ["object"]),
        ({"questions": [CHOICE | {"choices": []}]}, "questions[0].choices", ["`choices`"]),
        ({"questions": [CHOICE | {"name": "n" * 257}]}, "questions[0].name", ["257", "256", "shorten"]),
        ({"questions": [SCORE | {"levels": [{"label": "low"}]}]}, "questions[0].levels", ["1 levels", "add levels"]),
        (
            {"questions": [SCORE | {"levels": [{"label": "low"}, {"label": None}]}]},
            "questions[0].levels[1].label",
            ["describe the level"],
        ),
        ({"questions": [PREDICATE | {"instructions": ""}]}, "questions[0].instructions", ["ask something"]),
        ({"questions": [{"type": "predicate", "false": ""}]}, "questions[0].instructions", ["ask something"]),
        ({"questions": [PREDICATE | {"instructions": {}, "true": []}]}, "questions[0].instructions", ["describe"]),
        ({"questions": [PREDICATE | {"criteria": {}}]}, "questions[0].criteria", ["`criteria`"]),
        ({"state": [{"role": "user", "content": 5}]}, "state[0].content", ["no message"]),
        (
            {"state": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "state[0].content[0].type",
            ["no message: Invalid value: write text or image or audio"],
        ),
        ({"priority": "urgent"}, "priority", ["latency_critical", "throughput"]),
        ({"timeout_ms": 0}, "timeout_ms", [">= 1"]),
        ({"reproducible": "yes"}, "reproducible", ["bool"]),
        ({"lora": [{"name": "a"}, {"name": "a"}]}, "lora", ["twice"]),
        ({"max_tokens": 5}, "max_tokens", ["unknown"]),
        ({"cache_salt": "s" * 129}, "cache_salt", ["129", "128", "shorten"]),
        ({"client": "c" * 65}, "client", ["65", "64", "shorten"]),
        ({"orders": 3}, "orders", ["2"]),
        ({"lora": [{"name": "a", "scale": 100}]}, "lora[0].scale", ["10"]),
        ({"session": "é" * 65}, "session", ["130", "128"]),
    ],
)
def test_a_fault_names_its_path_and_both_numbers(members: dict[str, Any], path: str, words: list[str]) -> None:
    found, why = fault(**members)
    assert found == path
    assert all(word in why for word in words), why


def test_a_text_and_a_boolean_of_the_same_letters_are_two_options() -> None:
    question = CHOICE | {"options": [{"value": "true"}, {"value": True}]}
    assert [option.value for option in params(questions=[question]).questions[0].options] == ["true", True]  # type: ignore[union-attr]  # a choice


def test_the_bounds_themselves_are_taken() -> None:
    questions = [choice_of(255), SCORE | {"levels": [{"label": number} for number in range(10)]}]
    assert len(params(questions=questions).questions) == 2
    assert len(params(questions=[PREDICATE] * 400).questions) == 400


def test_a_predicate_needs_no_instructions_if_a_side_is_described() -> None:
    assert params(questions=[{"type": "predicate", "false": {"no": "reply"}}]).questions


def test_an_array_of_messages_is_a_conversation_and_any_other_array_is_json() -> None:
    said = params(state=[{"role": "user", "content": "Hi"}]).messages
    assert said is not None
    assert said[0].text == "Hi"
    assert params(state=[{"role": "user"}, 1]).messages is None
    assert params(state="Hi").messages is None


def test_a_question_without_a_name_has_its_index() -> None:
    assert params(questions=[CHOICE, SCORE | {"name": "how"}, PREDICATE]).names == ["0", "how", "2"]


def test_an_engine_gets_the_questions_without_what_the_daemon_reads() -> None:
    given = params(orders=2, session="s", _meta={"x": 1}).prompt
    assert (given.orders, given.meta, type(given).__struct_fields__[-1]) == (2, {}, "priority")
