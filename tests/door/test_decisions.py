"""Decisions by the door: OpenAI's endpoint and that of TypeSafe's clients, their members, answers and errors."""

import base64
import json
import os
from typing import Any

import msgspec
import pytest

from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import decided, model
from tests.door.support import Answer, OfflineDoor

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "data": PNG}
URL = f"data:image/png;base64,{PNG}"
ASKED = {
    "team": {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": {"owns": ["x"]}}},
    "how": {"type": "score", "instructions": ["How", "much?"], "criteria": ["little", {"label": "much"}]},
    "so": {"type": "noul", "criteria": {"true": "it is"}},
}
QUESTIONS = [
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": True, "description": "yes"}]},
    {
        "type": "score",
        "instructions": "How much?",
        "levels": [{"label": "little"}, {"label": "much", "description": 1}],
    },
    {"type": "predicate", "name": "so", "instructions": [{"type": "input_json", "data": {"is": "it"}}]},
]
NOUL = {"so": {"type": "noul", "instructions": "Is it?"}}


@pytest.fixture
def deciding(fake: FakeDaemon) -> FakeDaemon:
    """A daemon that decides."""
    fake.answers["decide"] = decided
    return fake


async def systemone(door: OfflineDoor, state: Any = "a text", questions: Any = None, **more: Any) -> Answer:
    """Return the answer to a request of TypeSafe's clients."""
    return await door.post("/v1/systemone", {"state": state, "questions": questions or NOUL, **more})


async def test_openais_questions_and_answers_are_the_daemons(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    body = {"model": "guide", "input": "a text", "questions": QUESTIONS, "prompt_cache_key": "k"}
    found = (await offline.post("/v1/decisions", body)).json
    assert deciding.params("decide") | {"timeout_ms": None} == {
        "state": "a text",
        "model": "guide",
        "session": "k",
        "timeout_ms": None,
        "questions": [
            {
                "type": "choice",
                "instructions": "Which?",
                "options": [{"value": "a"}, {"value": True, "description": "yes"}],
            },
            {
                "type": "score",
                "instructions": "How much?",
                "levels": [{"label": "little"}, {"label": {"label": "much", "description": 1}}],
            },
            {"type": "predicate", "name": "so", "instructions": {"is": "it"}},
        ],
    }
    assert found["answers"] == [
        {
            "name": None,
            "type": "choice",
            "choice": "a",
            "probabilities": [{"value": "a", "probability": 0.75}, {"value": True, "probability": 0.25}],
            "confidence": 0.5,
            "mass": 0.9,
        },
        {
            "name": None,
            "type": "score",
            "score": 0.25,
            "probabilities": [
                {"value": 0, "label": "little", "probability": 0.75},
                {"value": 1, "label": "much", "probability": 0.25},
            ],
            "confidence": 0.5,
            "mass": 0.9,
        },
        {"name": "so", "type": "predicate", "probability": 0.75, "mass": 0.9},
    ]
    assert found["usage"]["input_tokens"] == found["usage"]["total_tokens"] == 30
    assert found["usage"]["input_tokens_details"]["cached_tokens"] == 12


@pytest.mark.parametrize("names", [["a", "a", "1"], ["é" * 129, "", None], ["2", "0", "1"]])
async def test_a_name_that_decide_would_refuse_is_the_answers_alone(
    names: list[str | None], offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    asked = [{"type": "predicate", "name": name, "instructions": "Is it?"} for name in names]
    found = (await offline.post("/v1/decisions", {"input": "x", "questions": asked})).json
    assert [each["name"] for each in found["answers"]] == names
    assert not any("name" in each for each in deciding.params("decide")["questions"])


@pytest.mark.parametrize("lacks", ["images", "audio"])
@pytest.mark.parametrize(
    ("state", "more", "place"),
    [
        ("x", {"images": [URL]}, ["images"]),
        ("<a>", {"assets": {"<a>": {"data_base64": PNG}}}, ["assets"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": URL}]}]},
            {},
            ["state", "messages"],
        ),
    ],
)
async def test_images_that_the_model_cannot_take_are_named_where_they_were_sent(
    state: Any, more: dict[str, Any], place: list[str], lacks: str, offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.answers["decide"] = RpcError("model_unavailable", lacks=lacks)
    found = await systemone(offline, state, **more)
    assert found.json["detail"][0]["loc"] == ["body", *place]


@pytest.mark.parametrize("lacks", ["images", "audio"])
async def test_a_state_with_parts_that_the_model_cannot_read_names_the_input(
    offline: OfflineDoor, deciding: FakeDaemon, lacks: str
) -> None:
    deciding.answers["decide"] = RpcError("model_unavailable", lacks=lacks)
    found = await offline.post("/v1/decisions", {"input": "x", "questions": QUESTIONS})
    assert (found.status, found.json["error"]["param"]) == (400, "input")


async def test_openais_items_are_a_conversation(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    items = [
        {"role": "developer", "content": "Be fair"},
        {"role": "user", "content": [{"type": "input_text", "text": "See "}, {"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "43"},
        {"role": "user", "content": [{"type": "input_image", "image_url": URL}]},
    ]
    await offline.post("/v1/decisions", {"input": items, "questions": QUESTIONS[2:]})
    state = deciding.params("decide")["state"]
    assert [turn["role"] for turn in state] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    assert state[1]["content"] == 'See {"a": 1}'
    assert state[3] == {"role": "tool", "content": "42", "tool_call_id": "1"}
    assert json.loads(state[4]["tool_calls"][0]["function"]["arguments"]) == {"input": "x"}
    assert state[6]["content"] == [IMAGE]


async def test_questions_by_name_are_answered_by_name(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    found = (await systemone(offline, questions=ASKED)).json
    assert deciding.params("decide")["questions"] == [
        {
            "type": "choice",
            "name": "team",
            "instructions": "Which?",
            "options": [{"value": "a"}, {"value": "b", "description": {"owns": ["x"]}}],
        },
        {
            "type": "score",
            "name": "how",
            "instructions": ["How", "much?"],
            "levels": [{"label": "little"}, {"label": {"label": "much"}}],
        },
        {"type": "predicate", "name": "so", "true": "it is"},
    ]
    assert found["answers"] == {
        "team": {
            "type": "choice",
            "choice": "a",
            "probabilities": {"a": 0.75, "b": 0.25},
            "confidence": 0.5,
            "x_mass": 0.9,
        },
        "how": {
            "type": "score",
            "score": 0.25,
            "legend": {"0": "little", "1": {"label": "much"}},
            "probabilities": {"0": 0.75, "1": 0.25},
            "confidence": 0.5,
            "x_mass": 0.9,
        },
        "so": {"type": "noul", "noul": 0.75, "x_mass": 0.9},
    }
    assert found["usage"] == {"input_tokens": 30, "output_tokens": 0}


@pytest.mark.parametrize(
    ("state", "sent"),
    [
        ("a text", "a text"),
        ({"b": 1, "a": [2]}, {"b": 1, "a": [2]}),
        (["one", "two"], ["one", "two"]),
        ([{"role": "admin", "email": "b"}], [{"role": "admin", "email": "b"}]),
        ({"messages": [{"role": "admin"}]}, {"messages": [{"role": "admin"}]}),
        ([{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hi"}]),
        ({"messages": [{"role": "user", "content": "Hi"}]}, [{"role": "user", "content": "Hi"}]),
        (
            [{"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": None}],
            [{"role": "assistant", "content": ""}],
        ),
        (
            [
                {"role": "user", "content": "Hi", "id": "42", "timestamp": 7},
                {
                    "role": "assistant",
                    "reasoning_content": "Hm",
                    "tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}", "x": 1}}],
                },
            ],
            [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            ],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": URL}}],
                }
            ],
            [{"role": "user", "content": [IMAGE, {"type": "text", "text": "See"}]}],
        ),
    ],
    ids=[
        "text",
        "object",
        "list",
        "records",
        "records in an object",
        "messages",
        "messages in an object",
        "an answer of OpenAI's",
        "members of others",
        "images first",
    ],
)
async def test_a_state_is_a_text_messages_or_json(
    state: Any, sent: Any, offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    await systemone(offline, state)
    assert deciding.params("decide")["state"] == sent


async def test_images_beside_the_state_come_before_it(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    await systemone(offline, {"a": 1}, images=[URL])
    assert deciding.params("decide")["state"] == [
        {"role": "user", "content": [IMAGE, {"type": "text", "text": '{"a": 1}'}]}
    ]


async def test_a_message_without_content_has_the_images_alone(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    await systemone(offline, [{"role": "user"}], images=[URL])
    assert deciding.params("decide")["state"][0]["content"][0] == IMAGE


async def test_an_asset_stands_in_place_of_its_placeholder(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    assets = {"<a>": {"type": "image", "data_base64": PNG}, "<a>2": {"type": "image", "data_base64": "Mg=="}}
    await systemone(offline, {"left": "<a>", "right": "see <a>2!"}, assets=assets)
    (message,) = deciding.params("decide")["state"]
    assert message["content"] == [
        {"type": "text", "text": '{"left": "'},
        IMAGE,
        {"type": "text", "text": '", "right": "see '},
        {"type": "image", "data": "Mg=="},
        {"type": "text", "text": '!"}'},
    ]


@pytest.mark.parametrize(
    ("state", "assets", "place", "words"),
    [
        ("a" * 65, {"a": ""}, ["a"], "64 images or 8,388,608 bytes: use each once"),
        ("a a a", {"a": "AAAA" * (1 << 20)}, ["a"], "64 images or 8,388,608 bytes: use each once"),
        ("x", {str(number): "" for number in range(65)}, [], "more than 64 images: send fewer"),
        ("x", {"": ""}, [""], "give it a name"),
    ],
)
async def test_no_short_request_becomes_a_long_one_by_its_placeholders(
    state: str, assets: dict[str, str], place: list[str], words: str, offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    images = {name: {"data_base64": data} for name, data in assets.items()}
    found = await systemone(offline, state, assets=images)
    (fault,) = found.json["detail"]
    assert (found.status, fault["loc"]) == (422, ["body", "assets", *place])
    assert words in fault["msg"]


@pytest.mark.parametrize("file", [b"", b"\r\n", b"\x00--part\r\n", os.urandom(3000)], ids=range(4))
async def test_a_form_carries_the_bytes_of_its_images(file: bytes, offline: OfflineDoor, deciding: FakeDaemon) -> None:
    request = {"state": "see <a>", "questions": NOUL, "assets": {"<a>": {"type": "image", "part": "asset-0"}}}
    found = await offline.post("/v1/systemone", form(json.dumps(request).encode(), file), **FORM)
    assert found.status == 200
    (message,) = deciding.params("decide")["state"]
    assert base64.b64decode(message["content"][1]["data"]) == file


async def test_the_name_of_an_image_may_be_that_of_a_member_of_the_questions(
    offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    request = {"state": "see type", "questions": NOUL, "assets": {"type": {"data_base64": PNG}}}
    assert (await offline.post("/v1/systemone", request)).status == 200
    (message,) = deciding.params("decide")["state"]
    assert [part["type"] for part in message["content"]] == ["text", "image"]


FORM = {"content_type": "multipart/form-data; boundary=part"}


def form(request: bytes, file: bytes) -> bytes:
    """Return a form of a request and a file."""
    head = b"--part\r\nContent-Disposition: form-data; name="
    return (
        head + b'"request"\r\nContent-Type: application/json\r\n\r\n' + request + b"\r\n"
        b"" + head + b'"asset-0"; filename="asset-0"\r\nContent-Type: image/png\r\n\r\n' + file + b"\r\n--part--\r\n"
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no end"),
        (b"--part\r\n\r\n{}\r\n--part--", "no name"),
        (b'--part\r\nContent-Disposition: form-data; name="a"\r\n\r\n{}\r\n--part--', "no part `request`"),
        (b'--part\r\nContent-Disposition: form-data; name="request"\r\n\r\n{}', "no end"),
        (b"--part\r\n\r\n" * 80 + b"--part--", "more than 64 files"),
        (
            b"--part\r\nContent-Disposition: form-data" + b"; a=b" * 80_000 + b"\r\n\r\n{}\r\n--part--",
            "more than 4,096 bytes",
        ),
    ],
)
async def test_a_form_that_is_none_is_refused(body: bytes, why: str, offline: OfflineDoor) -> None:
    found = await offline.post("/v1/systemone", body, **FORM)
    assert found.status == 422
    assert why in found.json["detail"][0]["msg"]


async def test_a_long_type_of_a_form_is_refused(offline: OfflineDoor) -> None:
    found = await offline.post("/v1/systemone", b"--a--", content_type='multipart/form-data; boundary="' + ";" * 50_000)
    assert found.status == 422
    assert "more than 4,096 bytes" in found.json["detail"][0]["msg"]


async def test_an_image_of_a_form_that_no_asset_names_is_refused(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    """Else the questions would be about a state without it."""
    request = msgspec.json.encode({"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}})
    found = await offline.post("/v1/systemone", form(request, b"image"), **FORM)
    assert found.status == 422
    (fault,) = found.json["detail"]
    assert fault["loc"] == ["body", "assets"]
    assert "`asset-0`" in fault["msg"]
    assert not [call for call in deciding.calls if call.method == "decide"]


async def test_other_endpoints_take_no_forms(offline: OfflineDoor) -> None:
    assert (await offline.post("/v1/decisions", form(b"{}", b""), **FORM)).status == 415


async def test_a_name_that_no_model_has_is_the_model_that_decides(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    listed = [model(can=("embed",)), model(name="judge", can=("chat", "decide"))]
    deciding.answers["models/list"] = {"models": listed}
    assert (await systemone(offline, model="jev-latest")).status == 200
    assert deciding.params("decide")["model"] == "judge"


@pytest.mark.parametrize("empty", ["", [{"type": "input_text", "text": ""}], [{"type": "input_json", "data": {}}], []])
async def test_an_empty_predicate_is_refused_without_members_that_openais_has_not(
    empty: Any, offline: OfflineDoor
) -> None:
    asked = {"type": "predicate", "instructions": empty}
    found = await offline.post("/v1/decisions", {"input": "x", "questions": [asked]})
    error = found.json["error"]
    assert (found.status, error["param"]) == (400, "questions[0].instructions")
    assert error["message"].endswith("is empty: ask something")


async def test_the_list_of_models_is_typesafes_too(offline: OfflineDoor) -> None:
    found = (await offline.get("/v1/models")).json["models"]
    assert all(isinstance(each[name], str) for each in found for name in ("name", "description", "release_date"))


@pytest.mark.parametrize(
    ("questions", "place"),
    [
        ({"a": {"type": "boolean"}}, ["body", "questions", "a", "type"]),
        ({"a": {"instructions": "?"}}, ["body", "questions", "a", "type"]),
        ({"a": {"type": "score", "criteria": {"0": "x"}}}, ["body", "questions", "a", "criteria"]),
        ({"a": {"type": "score", "criteria": ["x", None]}}, ["body", "questions", "a", "criteria", 1]),
        ({"a": {"type": "box"}}, ["body", "questions", "a", "type"]),
        *(({name: {"type": "box"}}, ["body", "questions", name, "type"]) for name in ("0", "", "a.b", 'a["0"]', "a\\")),
        ([], ["body", "questions"]),
    ],
)
async def test_a_wrong_question_is_refused_with_its_path(
    questions: Any, place: list[Any], offline: OfflineDoor
) -> None:
    found = await offline.post("/v1/systemone", {"state": "x", "questions": questions})
    assert found.status == 422
    (fault,) = found.json["detail"]
    assert fault["loc"] == place
    assert fault["msg"]


@pytest.mark.parametrize(
    ("param", "place"),
    [
        ("questions[1].options", ["body", "questions", "b.0", "criteria"]),
        ("questions[0].levels[2].label", ["body", "questions", "a", "criteria", 2]),
        ("questions[0].true", ["body", "questions", "a", "criteria", "true"]),
        ("questions[2].options[1].description", ["body", "questions", "c", "criteria", "y.z"]),
        ("state", ["body", "state"]),
    ],
)
async def test_the_daemons_refusal_names_the_members_that_were_sent(
    param: str, place: list[Any], offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.first["decide"] = [RpcError("invalid_params", param=param, why="is wrong")]
    choice = {"type": "choice", "criteria": {"x": None, "y.z": 1}}
    found = await systemone(offline, questions={"a": NOUL["so"], "b.0": NOUL["so"], "c": choice})
    assert found.status == 422
    assert found.json["detail"][0]["loc"] == place


@pytest.mark.parametrize("below", [[], ["messages"]])
async def test_the_daemons_refusal_of_a_turn_names_it_where_it_was_sent(
    below: list[str], offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.first["decide"] = [RpcError("invalid_params", param="state[1].content", why="is wrong")]
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    found = await systemone(offline, state={"messages": turns} if below else turns)
    assert found.json["detail"][0]["loc"] == ["body", "state", *below, 1, "content"]


@pytest.mark.parametrize(
    ("param", "member"),
    [
        ("questions[0].options", "questions[0].choices"),
        ("questions[1].levels[0].label", "questions[1].levels[0].label"),
        ("questions[1].levels[1].label", "questions[1].levels[1].description"),
    ],
)
async def test_openais_refusals_name_its_members(
    param: str, member: str, offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.first["decide"] = [RpcError("invalid_params", param=param, why="is wrong")]
    found = await offline.post("/v1/decisions", {"input": "x", "questions": QUESTIONS})
    assert found.status == 400
    assert found.json["error"]["param"] == member


@pytest.mark.parametrize(
    ("more", "member"),
    [
        ({"assets": {"<a>": {"data_base64": PNG}}}, "assets.<a>"),
        ({"state": "<a>", "assets": {"<a>": {"type": "image"}}}, "assets.<a>"),
        ({"state": "<a>", "assets": {"<a>": {"part": "p"}}}, "assets.<a>.part"),
        ({"images": ["https://example.org/a.png"]}, "images[0]"),
        (
            {
                "state": "<a>",
                "assets": {"<a>": {"data_base64": PNG}},
                "questions": {"q": {"type": "noul", "instructions": "<a>?"}},
            },
            "questions.q",
        ),
    ],
    ids=["nowhere", "no data", "no part", "a URL", "in a question"],
)
async def test_an_image_that_cannot_be_used_is_refused_by_name(
    more: dict[str, Any], member: str, offline: OfflineDoor
) -> None:
    body = {"state": "a text", "questions": NOUL} | more
    found = await offline.post("/v1/systemone", body)
    assert found.status == 422
    assert found.json["detail"][0]["msg"].startswith(f"{member}: ")


@pytest.mark.parametrize(
    ("more", "member"),
    [
        ({"state": "a text"}, "state"),
        ({"state": "a text", "images": [URL]}, "images"),
        ({"state": "<a>", "assets": {"<a>": {"data_base64": "!!"}}}, "assets"),
        ({"state": [{"role": "user", "content": "Hi"}]}, "state"),
    ],
)
async def test_what_the_daemon_refuses_of_an_image_names_the_member_that_has_it(
    more: dict[str, Any], member: str, offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.answers["decide"] = RpcError("invalid_params", param="state", why="the image is not a PNG, JPEG or GIF")
    found = await offline.post("/v1/systemone", {"questions": NOUL} | more)
    assert found.json["detail"][0]["loc"] == ["body", member]


async def test_a_state_of_nothing_reaches_the_daemon_which_asks_for_one(
    offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    await systemone(offline, state=None)
    assert deciding.params("decide")["state"] is None


async def test_other_errors_have_a_type_and_a_message(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    deciding.first["decide"] = [RpcError("overloaded", why="queue full", retry_after_ms=1500)]
    found = await systemone(offline)
    assert found.status == 429
    assert found.json["detail"]["error_type"] == "rate_limit_error"
    assert found.headers["retry-after"] == "2"


async def test_card_s_own_members_reach_the_decision(offline: OfflineDoor, deciding: FakeDaemon) -> None:
    await systemone(offline, card={"reproducible": True, "orders": 2, "priority": "throughput"})
    sent = deciding.params("decide")
    assert (sent["reproducible"], sent["orders"], sent["priority"]) == (True, 2, "throughput")
    bodies = {"systemone": {"state": "x", "questions": NOUL}, "decisions": {"input": "x", "questions": QUESTIONS}}
    for path, body in bodies.items():
        await offline.post(f"/v1/{path}", body, x_card_orders="2")
        assert deciding.params("decide")["orders"] == 2
    bad = (
        ("x_card_supersede", "k"),
        ("x_card_lenient", "true"),
        ("x_card_reasoning_tokens", "5"),
        ("x_card_orders", "9"),
    )
    for header, value in bad:
        refused = await offline.post("/v1/systemone", {"state": "x", "questions": NOUL}, **{header: value})
        assert refused.status == 422


@pytest.mark.parametrize(
    "change",
    [
        {"answers": []},
        {"answers": [{"type": "predicate", "name": "0", "probability": 1.0, "probabilities": [1.0], "mass": 1.0}]},
    ],
    ids=["too few answers", "too few probabilities"],
)
async def test_a_daemon_that_answers_other_questions_is_a_bad_gateway(
    change: dict[str, Any], offline: OfflineDoor, deciding: FakeDaemon
) -> None:
    deciding.answers["decide"] = lambda params: decided(params) | change
    assert (await systemone(offline)).status == 502
