"""The client's result types say what the protocol's definitions say, in plain types."""

from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from car_client import calls, results
from car_protocol import answer, capacity, models, status
from car_protocol.conversation import FunctionCall, ToolCall
from tests.client import samples

PAIRS: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    results.OneAnswer: answer.OneAnswer,
    results.Answer: answer.Answer,
    results.ToolCallDelta: answer.ToolCallDelta,
    results.Chunk: answer.Chunk,
    results.Capacity: capacity.Capacity,
    results.Defaults: models.Defaults,
    results.Model: models.Model,
    results.ModelDetails: models.ModelDetails,
    results.ModelStatus: status.ModelStatus,
    results.SequenceStatus: status.SequenceStatus,
    results.ConnectionStatus: status.ConnectionStatus,
    results.Status: status.Status,
}
# Members that daemons send since a later version than 0.1.0, and what they are without.
NEWER: dict[type[msgspec.Struct], dict[str, object]] = {
    results.Model: {"aliases": [], "defaults": results.Defaults()},
    results.ModelStatus: {"aliases": [], "defaults": results.Defaults()},
}
# Results of a daemon of version 0.1.0, as it sent them.
RECORDED = msgspec.json.decode((Path(__file__).parent / "daemon_0_1_0.json").read_bytes())
WIRE = {wire: plain for plain, wire in PAIRS.items()}


def plain(hint: Any) -> Any:
    """Return the client's type for one of the wire's."""
    if get_origin(hint) in (Union, UnionType):
        members = [plain(member) for member in get_args(hint)]
        return Union[tuple(members)]  # noqa: UP007 - built from a list
    if get_origin(hint) is list:
        return list[plain(get_args(hint)[0])]  # type: ignore[misc]  # built at run time
    return type(None) if hint is msgspec.UnsetType else WIRE.get(hint, hint)


def members(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of an object's members."""
    return get_type_hints(kind)


def test_every_result_type_is_compared() -> None:
    own = {kind for kind in vars(results).values() if getattr(kind, "__module__", "") == results.__name__}
    assert {kind for kind in own if isinstance(kind, type)} == set(PAIRS)


@pytest.mark.parametrize(("kind", "wire"), PAIRS.items(), ids=lambda kind: kind.__name__)
def test_members_and_types_are_the_protocols(kind: type[msgspec.Struct], wire: type[msgspec.Struct]) -> None:
    expected = {name: plain(hint) for name, hint in members(wire).items()}
    if kind in (results.Answer, results.OneAnswer):
        expected["text"] = str
    assert members(kind) == expected
    assert kind.__struct_fields__ == wire.__struct_fields__


@pytest.mark.parametrize(("kind", "wire"), PAIRS.items(), ids=lambda kind: kind.__name__)
def test_members_that_the_daemon_may_leave_out_are_none_or_empty(
    kind: type[msgspec.Struct], wire: type[msgspec.Struct]
) -> None:
    optional = {field.name for field in msgspec.structs.fields(wire) if field.default is msgspec.UNSET}
    fields = {field.name: field for field in msgspec.structs.fields(kind) if not field.required}
    defaults = {name: field.default for name, field in fields.items() if field.default is not msgspec.NODEFAULT}
    assert defaults == {
        name: "" if kind in (results.Answer, results.OneAnswer) and name == "text" else None for name in optional
    }
    assert {name: fields[name].default_factory() for name in fields.keys() - defaults} == NEWER.get(kind, {})


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
