"""Decisions that are wrong in some way: both endpoints name the member as it was sent, and say what to do.

The daemon behind them has the real definitions of `decide`, so that its refusals are translated too.
"""

import json
from typing import Any

import pytest

from car_protocol.decide import DecideParams
from car_protocol.errors import RpcError
from car_protocol.params import decode_params
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import decided
from tests.door.support import OfflineDoor

LEFT_OUT: Any = object()
PNG = "data:image/png;base64,AAAA"
PLACED = {"<a>": {"data_base64": "AAAA"}}
URL = "https://example.org/a.png"
CHOICE = {"type": "choice", "instructions": "Which?"}
SCORE = {"type": "score", "instructions": "How much?"}
NOUL = {"type": "noul", "instructions": "Is it so?"}
TEXT = {"type": "input_text", "text": "Is it so?"}
PREDICATE = {"type": "predicate", "instructions": "Is it so?"}


def one(question: Any) -> dict[str, Any]:
    """Return the questions of TypeSafe's endpoint."""
    return {"questions": {"q": question}}


def only(question: Any) -> dict[str, Any]:
    """Return the questions of OpenAI's endpoint."""
    return {"questions": [question]}


def part(**members: Any) -> dict[str, Any]:
    """Return a message with one part as OpenAI's input."""
    return {"input": [{"role": "user", "content": [members]}]}


def sent(body: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (body | members).items() if value is not LEFT_OUT}


def checked(params: dict[str, Any]) -> Any:
    """Return what the daemon answers."""
    try:
        decode_params(DecideParams, json.dumps(params).encode())
    except RpcError as error:
        return error
    return decided(params)


@pytest.fixture
def checking(fake: FakeDaemon) -> FakeDaemon:
    """A daemon that checks params."""
    fake.answers["decide"] = checked
    return fake


TYPESAFES = [
    ({"state": LEFT_OUT}, "state", "required"),
    ({"state": ""}, "state", "give what the questions are about"),
    ({"state": {"messages": []}}, "state", "give what the questions are about"),
    ({"state": [{"role": "user", "content": 5}]}, "state.0.content", "Expected `str | array | null`"),
    ({"state": [{"role": "user", "content": [{"type": "film"}]}]}, "state.0.content.0", "a part is {type: text"),
    (
        {"state": [{"role": "user", "content": [{"type": "image_url", "image_url": URL}]}]},
        "state.0.content.0.image_url",
        "as a data URL",
    ),
    ({"questions": LEFT_OUT}, "questions", "required"),
    ({"questions": []}, "questions", "Expected `object`"),
    ({"questions": {}}, "questions", "add one"),
    ({"questions": {str(number): NOUL for number in range(401)}}, "questions", "401 questions, at most 400"),
    (one(5), "questions.q", "Expected `object`"),
    (one({"instructions": "?"}), "questions.q.type", "required"),
    (one({"type": "predicate"}), "questions.q.type", "write noul or choice or score"),
    (one({"type": "box"}), "questions.q.type", "ask for a choice"),
    (one({"type": "noul"}), "questions.q.instructions", "describe `true` or `false`"),
    (one({"type": "noul", "instructions": ""}), "questions.q.instructions", "ask something"),
    (one(NOUL | {"criteria": {"yes": "it is"}}), "questions.q.criteria.yes", "there is no such member"),
    (one(NOUL | {"criteria": ["yes", "no"]}), "questions.q.criteria", "Expected `object | null`"),
    (one(CHOICE), "questions.q.criteria", "required"),
    (one({"type": "choice", "criteria": {"a": None, "b": None}}), "questions.q.instructions", "required"),
    (one({"type": "score", "criteria": ["a", "b"]}), "questions.q.instructions", "required"),
    (
        one({"type": "noul", "instructions": "Is the image blurry?"})
        | {"state": "image", "assets": {"image": PLACED["<a>"]}},
        "questions.q",
        "has the placeholder 'image'",
    ),
    (one(CHOICE | {"criteria": ["a", "b"]}), "questions.q.criteria", "Expected `object`"),
    (one(CHOICE | {"criteria": {"a": None}}), "questions.q.criteria", "at least 2 are needed: add options"),
    (one(CHOICE | {"criteria": {str(each): 1 for each in range(256)}}), "questions.q.criteria", "256 options, at most"),
    (one(SCORE | {"criteria": {"0": "a"}}), "questions.q.criteria", "Expected `array`"),
    (one(SCORE | {"criteria": ["a"]}), "questions.q.criteria", "add levels"),
    (one(SCORE | {"criteria": ["a"] * 11}), "questions.q.criteria", "merge neighbours"),
    (one(SCORE | {"criteria": ["a", None]}), "questions.q.criteria.1", "describe it"),
    ({"questions": {"n" * 257: NOUL}}, f"questions.{'n' * 257}.name", "257 bytes, at most 256 are allowed: shorten it"),
    ({"model": 5}, "model", "Expected `str | null`"),
    ({"images": URL}, "images", "Expected `array | null`"),
    ({"images": [URL]}, "images.0", "as a data URL"),
    ({"assets": []}, "assets", "Expected `object | null`"),
    ({"assets": {"<a>": 5}}, "assets.<a>", "Expected `object`"),
    ({"state": [{"role": "user", "content": 5}], "images": [PNG]}, "state.0.content", "Expected `str | array | null`"),
    (
        {"state": [{"role": "user", "content": {"a": 1}}], "assets": PLACED},
        "state.0.content",
        "Expected `str | array | null`",
    ),
    (
        {"state": {"messages": [{"role": "user", "content": 5}]}, "images": [PNG]},
        "state.messages.0.content",
        "Expected `str | array | null`",
    ),
    ({"assets": {"<a>": {"type": "film"}}}, "assets.<a>.type", "an asset is an image"),
    ({"card": {"orders": 3}}, "card.orders", "<= 2"),
    ({"card": {"client": "c" * 65}}, "card.client", "65 bytes, at most 64"),
    ({"card": {"session": "s" * 129}}, "card.session", "129 bytes, at most 128"),
    ({"card": {"priority": "urgent"}}, "card.priority", 'write "latency_critical" or "throughput"'),
    ({"card": {"max_tokens": 5}}, "card.max_tokens", "GET /openapi.json lists them"),
]
OPENAIS = [
    ({"input": LEFT_OUT}, "input", "required"),
    ({"input": 5}, "input", "Expected `str | array`"),
    ({"input": []}, "input", "give what the questions are about"),
    ({"input": [{"role": "user"}]}, "input[0].content", "give a text or a list of parts"),
    ({"input": [{"type": "film"}]}, "input[0]", "not offered"),
    ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].call_id", "send the call too"),
    ({"input": [{"type": "custom_tool_call_output", "call_id": "1"}]}, "input[0].call_id", "send the call too"),
    ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name", "give the name"),
    (part(type="film"), "input[0].content[0]", "a part is {type: input_text"),
    (part(type="input_json"), "input[0].content[0].data", "give a JSON value that is not null"),
    (part(type="input_json", data=None), "input[0].content[0].data", "give a JSON value that is not null"),
    (part(type="input_image", image_url=URL), "input[0].content[0].image_url", "as a data URL"),
    ({"questions": {}}, "questions", "Expected `array`"),
    ({"questions": []}, "questions", "add one"),
    ({"questions": [PREDICATE] * 401}, "questions", "send the others in a second request"),
    (only(5), "questions[0]", "Expected `object`"),
    (only({"type": "noul"}), "questions[0].type", "write predicate or choice or score"),
    (only({"type": "predicate"}), "questions[0].instructions", "required"),
    (only(PREDICATE | {"instructions": []}), "questions[0].instructions", "ask something"),
    (only(PREDICATE | {"instructions": [{"type": "input_json"}]}), "questions[0].instructions[0].data", "give a JSON"),
    (
        only(PREDICATE | {"instructions": [TEXT, {"type": "input_json"}]}),
        "questions[0].instructions[1].data",
        "give a JSON",
    ),
    (only(PREDICATE | {"instructions": [{"type": "input_text"}, TEXT]}), "questions[0].instructions[0].text", "a text"),
    (only(PREDICATE | {"instructions": [{"type": "input_image"}]}), "questions[0].instructions[0]", "into `input`"),
    (only(PREDICATE | {"name": 5}), "questions[0].name", "Expected `str | null`"),
    (only(CHOICE), "questions[0].choices", "required"),
    (only(CHOICE | {"choices": ["a", "b"]}), "questions[0].choices[0]", "Expected `object`"),
    (only(CHOICE | {"choices": [{"value": 1}]}), "questions[0].choices[0].value", "Expected `bool | str`"),
    (only(CHOICE | {"choices": [{"value": "a"}]}), "questions[0].choices", "add options"),
    (only(CHOICE | {"choices": [{"value": "a"}] * 2}), "questions[0].choices[1].value", "leave one out"),
    (
        only(CHOICE | {"choices": [{"value": str(each)} for each in range(256)]}),
        "questions[0].choices",
        "256 options, at most 255 are allowed: ask in two steps",
    ),
    (only(SCORE | {"levels": {"0": "a"}}), "questions[0].levels", "Expected `array`"),
    (only(SCORE | {"levels": [{"label": 5}]}), "questions[0].levels[0].label", "Expected `str`"),
    (only(SCORE | {"levels": [{"label": "a"}] * 11}), "questions[0].levels", "merge neighbours"),
    ({"model": 5}, "model", "Expected `str | null`"),
    ({"card": {"orders": 0}}, "card.orders", ">= 1"),
    ({"card": {"client": "c" * 65}}, "card.client", "65 bytes, at most 64"),
    ({"card": {"session": "s" * 129}}, "card.session", "129 bytes, at most 128"),
    ({"prompt_cache_key": 5}, "prompt_cache_key", "Expected `str | null`"),
    ({"safety_identifier": 5}, "safety_identifier", "Expected `str | null`"),
]


@pytest.mark.parametrize(("members", "place", "words"), TYPESAFES)
async def test_typesafes_endpoint_names_the_member_and_says_what_to_do(
    members: dict[str, Any], place: str, words: str, offline: OfflineDoor, checking: FakeDaemon
) -> None:
    found = await offline.post("/v1/systemone", sent({"state": "a text"} | one(NOUL), members))
    assert found.status == 422
    (fault,) = found.json["detail"]
    assert ".".join(map(str, fault["loc"])) == f"body.{place}"
    assert words in fault["msg"]


@pytest.mark.parametrize(("members", "place", "words"), OPENAIS)
async def test_openais_endpoint_names_the_member_and_says_what_to_do(
    members: dict[str, Any], place: str, words: str, offline: OfflineDoor, checking: FakeDaemon
) -> None:
    found = await offline.post("/v1/decisions", sent({"input": "a text"} | only(PREDICATE), members))
    assert found.status == 400
    assert found.json["error"]["param"] == place
    assert words in found.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/decisions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b'"state"'])
async def test_a_body_that_is_none_is_refused(body: bytes, path: str, offline: OfflineDoor) -> None:
    assert (await offline.post(path, body)).status == (422 if path == "/v1/systemone" else 400)
