"""llama-server's `/infill`, as editors use it."""

from typing import Any

import pytest

from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import OfflineDoor

GAP: dict[str, Any] = {"input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(add(1, 2))\n"}


async def test_a_gap_is_filled(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = ANSWER | {"text": "return a + b", "finish_reason": "stop", "stop": "\n"}
    extra = [{"filename": "sub.py", "text": "def sub(a, b): ...\n"}]
    more = {"input_extra": extra, "prompt": "    ", "n_predict": 32, "top_k": 40, "stop": ["\n"], "samplers": ["top_k"]}
    answer = await offline.post("/infill", GAP | more)
    assert answer.status == 200, answer.body
    shown = answer.json
    assert (shown["content"], shown["stop"], shown["stop_type"]) == ("return a + b", True, "word")
    assert (shown["stopping_word"], shown["tokens_predicted"], shown["model"]) == ("\n", 2, "guide")
    assert shown["timings"]["prompt_n"] == 3
    sent = fake.params("infer")
    assert sent["prompt"] == "def sub(a, b): ...\ndef add(a, b):\n    "
    assert (sent["suffix"], sent["max_tokens"], sent["top_k"]) == (GAP["input_suffix"], 32, 40)


async def test_a_gap_is_filled_in_pieces(offline: OfflineDoor) -> None:
    events = (await offline.post("/infill", GAP | {"stream": True})).events
    assert [(event["content"], event["stop"]) for event in events] == [("Hel", False), ("lo", False), ("", True)]
    assert events[-1]["stop_type"] == "eos"


async def test_an_empty_suffix_is_a_gap_at_the_end(offline: OfflineDoor, fake: FakeDaemon) -> None:
    assert (await offline.post("/infill", GAP | {"input_suffix": ""})).status == 200
    assert fake.params("infer")["suffix"] == ""


async def test_a_warm_up_without_an_answer_has_one_token(offline: OfflineDoor, fake: FakeDaemon) -> None:
    assert (await offline.post("/infill", GAP | {"n_predict": 0})).status == 200
    assert fake.params("infer")["max_tokens"] == 1


async def test_a_model_that_cannot_fill_is_named(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = RpcError("model_unavailable", lacks="fill")
    answer = await offline.post("/infill", GAP)
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_by_model")
    assert "fill" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_suffix": "a"}, "input_prefix"),
        (GAP | {"n": 2}, "n"),
        (GAP | {"input_extra": [{"filename": "a.py"}]}, "input_extra[0].text"),
    ],
)
async def test_a_request_without_a_gap_is_refused(offline: OfflineDoor, body: dict[str, Any], param: str) -> None:
    answer = await offline.post("/infill", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
