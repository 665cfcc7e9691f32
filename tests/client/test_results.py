"""The objects that calls return: the protocol's, also as older daemons sent them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client import calls, results
from car_protocol import answer
from car_protocol.conversation import FunctionCall, ToolCall
from tests.client import samples

# Results of a daemon of version 0.1.0, as it sent them.
RECORDED = msgspec.json.decode((Path(__file__).parent / "daemon_0_1_0.json").read_bytes())


STRUCTS: list[type[msgspec.Struct]] = [each for each in vars(results).values() if hasattr(each, "__struct_fields__")]


@pytest.mark.parametrize(("kind", "wire"), [(results.Answer, answer.Answer), (results.OneAnswer, answer.OneAnswer)])
def test_an_answer_has_the_protocols_members_and_always_a_text(
    kind: type[results.Answer | results.OneAnswer], wire: type[msgspec.Struct]
) -> None:
    assert kind.__struct_fields__ == wire.__struct_fields__
    read = msgspec.convert(samples.ANSWER, kind)
    assert (read.text, "text" in msgspec.to_builtins(read)) == ("", False)


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_members_that_the_daemon_left_out_are_none_and_are_left_out_again(kind: type[msgspec.Struct]) -> None:
    plain = {field.name: field.default for field in msgspec.structs.fields(kind) if not field.required}
    assert {name for name, value in plain.items() if value not in (None, msgspec.NODEFAULT)} <= {"text"}
    assert kind.__struct_config__.omit_defaults or not plain


@pytest.mark.parametrize(
    "spec",
    [
        calls.capacity(),
        calls.infer("infer", "Hi", None, None, {}),
        calls.infer("infer_stream", "Hi", None, None, {}),
        calls.tokenize("Hi", None, {}),
        calls.models(),
        calls.show_model("guide"),
        calls.status(),
    ],
    ids=lambda spec: spec.method,
)
def test_results_of_a_daemon_of_version_0_1_0_are_read(spec: calls.CallSpec[Any]) -> None:
    assert isinstance(msgspec.convert(RECORDED[spec.method], spec.result), spec.result)


def test_members_that_a_daemon_of_version_0_1_0_does_not_send_are_empty() -> None:
    [model] = msgspec.convert(RECORDED["models/list"], calls.models().result).models
    assert (model.name, model.aliases, model.defaults) == ("guide", [], results.Defaults())
    assert msgspec.convert(RECORDED["chunk"], results.Chunk).text


def test_a_result_is_encoded_as_it_came() -> None:
    came = samples.busy_status()
    status = msgspec.convert(came, results.Status)
    assert status.sequences[0].client == "editor"
    assert status.capacity.reason is None
    assert msgspec.to_builtins(status) == came


def test_a_streams_answer_has_the_contents_of_its_chunks() -> None:
    ended = msgspec.convert(samples.ANSWER | {"chunks": 2}, results.Answer)
    pieces: list[dict[str, Any]] = [
        {"text": "", "reasoning": "hm", "tokens": [1]},
        {"text": "a", "tokens": [2, 3]},
        {"text": "b", "tool_calls": [{"index": 0, "id": "a", "name": "f", "arguments": "{"}]},
        {"text": "", "tool_calls": [{"index": 0, "arguments": "}"}, {"index": 1, "id": "b", "name": "g"}]},
        {"text": "", "tool_calls": [{"index": 1, "arguments": "1", "invalid": "arguments"}]},
    ]
    chunks = [msgspec.convert({"id": 1, "seq": seq} | piece, results.Chunk) for seq, piece in enumerate(pieces)]
    answer = results.joined(ended, chunks)
    assert (answer.text, answer.reasoning, answer.tokens, answer.logprobs) == ("ab", "hm", [1, 2, 3], None)
    assert answer.tool_calls == [
        ToolCall("a", FunctionCall("f", "{}")),
        ToolCall("b", FunctionCall("g", "1"), invalid="arguments"),
    ]
    assert (answer.finish_reason, answer.chunks) == ("stop", 2)


def test_a_stream_without_chunks_has_an_empty_text() -> None:
    answer = results.joined(msgspec.convert(samples.ANSWER, results.Answer), [])
    assert (answer.text, answer.reasoning, answer.tool_calls) == ("", None, None)


def test_a_stream_of_several_answers_has_the_contents_of_each() -> None:
    wire = {name: value for name, value in samples.ANSWER.items() if name != "finish_reason"}
    ended = [{"finish_reason": "stop"}, {"finish_reason": "length"}, {"finish_reason": "deadline"}]
    answer = msgspec.convert(wire | {"chunks": 3, "answers": ended}, results.Answer)
    pieces: list[dict[str, Any]] = [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}, {"index": 1, "text": "c"}]
    chunks = [msgspec.convert({"id": 1, "seq": seq} | piece, results.Chunk) for seq, piece in enumerate(pieces)]
    joined = results.joined(answer, chunks)
    assert joined.answers is not None
    assert [(each.text, each.finish_reason) for each in joined.answers] == [
        ("a", "stop"),
        ("bc", "length"),
        ("", "deadline"),
    ]
    assert (joined.text, joined.finish_reason) == ("", None)
