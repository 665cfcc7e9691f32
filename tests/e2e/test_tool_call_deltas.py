"""Tool calls in streams: pieces as they are written, which together are the call of the whole answer."""

import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import jsonschema
import pytest

from car_client import AsyncClient, Client
from car_client.results import Chunk
from car_protocol.answer import joined_calls
from tests.e2e.support import Daemon, Json, RawClient, running
from tests.e2e.test_clients import carctl
from tests.e2e.test_slow_readers import until
from tests.e2e.test_thinking import WORDS, told
from tests.e2e.test_tools import ARGUMENTS, MESSAGES, QWEN, TAGS, TOOLS, called, tool
from tools.random_model import generate

# The only text that a forced call can have, some hundred tokens long.
TEXT = 'He said "no" <b> {é}\n\\n' * 8
NOTE: Json = {
    "type": "object",
    "properties": {"text": {"enum": [TEXT]}, "times": {"enum": [3]}},
    "required": ["text", "times"],
    "additionalProperties": False,
}
CODER = (
    "{% if tools %}{{ '<tools>' ~ tools | tojson ~ '</tools> <tool_call><function=name><parameter=key>' }}{% endif %}"
    "{% for message in messages %}{{ message.role ~ ': ' ~ message.content }}{% endfor %}{{ 'assistant: ' }}"
)
WRITTEN = {
    "known": f'{{ "name": "greet", "arguments": {ARGUMENTS} }}',
    "unknown": f'{{ "name": "gret", "arguments": {ARGUMENTS} }}',
    "broken": '{ "name": "greet", "arguments": { "who": oh } }',
    "begun": '{ "name": "greet", "arguments": { "who": "B',
}


def note(**more: object) -> Json:
    """Return params that force one long call."""
    forced: Json = {"tools": [tool("note", NOTE)], "tool_choice": {"name": "note"}}
    return {"messages": MESSAGES, **forced, "temperature": 0, **more}


def unending(max_tokens: int = 1200, **more: object) -> Json:
    """Return params that force a call too long for its answer."""
    text = {"type": "object", "properties": {"text": {"type": "string", "minLength": 3000}}, "required": ["text"]}
    return note(tools=[tool("note", text)], max_tokens=max_tokens, **more)


@contextmanager
def model(template: str) -> Iterator[Daemon]:
    """A daemon of one sequence, whose model writes calls as the template shows them."""
    tokens = dict.fromkeys((*TAGS, *WRITTEN.values()), False)
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "model.gguf"
        generate(path, "tiny", "q8_0", template=template, extra_tokens={**WORDS, **tokens})
        with running(Path(name), "--model", str(path), "--capacity", "1") as daemon:
            yield daemon.ready()


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder"])
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon whose model writes arguments as JSON, or as tagged texts."""
    with model(QWEN if request.param == "hermes" else CODER) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def hermes() -> Iterator[RawClient]:
    """A client of the model that writes JSON."""
    with model(QWEN) as daemon, daemon.connect() as client:
        yield client


def functions(calls: list[Json]) -> list[Json]:
    """Return calls without their ids, which differ from run to run."""
    return [{name: value for name, value in call.items() if name != "id"} for call in calls]


def pieces_of(chunks: list[Json]) -> list[Json]:
    return [piece for chunk in chunks for piece in chunk.get("tool_calls", [])]


def begun(client: RawClient, stream: int) -> list[Json]:
    """Return the chunks of a stream up to the first with arguments."""
    chunks: list[Json] = []
    while not any("arguments" in piece for piece in pieces_of(chunks)):
        chunks.append(client.first_chunk(stream))
    return chunks


def rest(client: RawClient) -> tuple[list[Json], Json]:
    """Return the further chunks of the only stream, and its response."""
    chunks = []
    while "params" in (message := client.receive()):
        chunks.append(message["params"])
    return chunks, message


def test_the_pieces_of_a_forced_call_are_the_call_of_the_whole_answer(client: RawClient) -> None:
    whole = client.result("infer", note())
    (call,) = whole["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), NOTE)
    chunks, response = client.stream(note())
    first, *others = pieces_of(chunks)
    assert (set(first), first["index"], first["name"]) == ({"index", "id", "name"}, 0, "note")
    assert all(set(piece) == {"index", "arguments"} for piece in others)
    # A text in arguments is sent token by token.
    assert len(others) > len(TEXT) / 4
    assert functions(called(chunks)) == functions([call])
    assert response["result"]["chunks"] == len(chunks)


def test_a_cut_call_has_come_as_far_as_it_was_written(client: RawClient) -> None:
    whole = client.result("infer", note())["tool_calls"][0]["function"]["arguments"]
    for most in (20, 60, 120):
        chunks, response = client.stream(note(max_tokens=most))
        assert response["result"]["finish_reason"] == "length"
        calls = client.result("infer", note(max_tokens=most)).get("tool_calls", [])
        assert functions(called(chunks)) == functions(calls)
        assert [call["invalid"] for call in calls] == ["arguments"] * len(calls)
        assert all(whole.startswith(call["function"]["arguments"]) for call in calls)
    assert pieces_of(chunks)[-1]["invalid"] == "arguments"


def test_a_deadline_leaves_a_part_of_a_call(client: RawClient) -> None:
    # As long as a twelfth of the call takes, or longer if a busy machine has not begun it by then.
    timings = client.result("infer", unending(max_tokens=100))["timings"]
    time_ms = int(timings["ttft_ms"] + timings["decode_ms"])
    while not pieces_of((found := client.stream(unending(timeout_ms=time_ms)))[0]):
        time_ms *= 2
    chunks, response = found
    assert response["result"]["finish_reason"] == "deadline"
    (call,) = called(chunks)
    assert call["invalid"] == "arguments"


def test_a_call_is_parked_and_goes_on_where_it_was(client: RawClient, daemon: Daemon) -> None:
    expected = client.result("infer", note())["tool_calls"]
    with daemon.connect() as other:
        stream = client.send("infer_stream", note(priority="throughput"))
        chunks = begun(client, stream)
        urgent = other.send("infer_stream", {"prompt": "Hi", "max_tokens": 500, "ignore_eos": True})
        other.first_chunk(urgent)
        assert other.result("inference/capacity")["parked"] == 1
        others, response = rest(client)
        assert "result" in other.response(urgent)
    assert "result" in response
    assert functions(called([*chunks, *others])) == functions(expected)


@pytest.mark.slow
def test_a_client_that_does_not_read_gets_its_call_in_fewer_pieces(client: RawClient, daemon: Daemon) -> None:
    params = unending(logprobs=20)
    expected = client.result("infer", params)
    with daemon.connect() as other:
        client.send("infer_stream", params)
        until(other, parked=1, in_use=0)
    chunks, response = rest(client)
    assert "result" in response
    assert functions(called(chunks)) == functions(expected["tool_calls"])
    assert [chunk["seq"] for chunk in chunks] == list(range(response["result"]["chunks"]))
    assert len(chunks) < sum(len(chunk.get("logprobs", [])) for chunk in chunks) == len(expected["logprobs"])
    assert len(pieces_of(chunks)) < len(chunks) + 2


@pytest.mark.slow
def test_an_engine_that_dies_in_a_call_repeats_no_piece(client: RawClient, daemon: Daemon) -> None:
    expected = client.result("infer", note())["tool_calls"]
    stream = client.send("infer_stream", note())
    chunks = begun(client, stream)
    daemon.engine().send_signal(signal.SIGKILL)
    others, response = rest(client)
    assert response["error"]["data"] == {**response["error"]["data"], "reason": "engine_lost", "started": True}
    sent = called([*chunks, *others])[0]["function"]["arguments"]
    assert expected[0]["function"]["arguments"].startswith(sent)
    with daemon.connect() as other:
        whole = client.send("infer", note())
        while not any(
            each["phase"] == "decode" and each["done_tokens"] > 50
            for each in other.result("daemon/status")["sequences"]
        ):
            pass
        daemon.engine().send_signal(signal.SIGKILL)
    assert functions(client.response(whole)["result"]["tool_calls"]) == functions(expected)


def parts_in_order(chunks: list[Json]) -> list[str]:
    """Return which parts a stream has, in their order."""
    return [part for part, _ in groupby(part for chunk in chunks for part in ("text", "tool_calls") if chunk.get(part))]


def test_text_before_between_and_after_calls_stays_in_its_place(hermes: RawClient) -> None:
    written = ("One", TAGS[0], WRITTEN["known"], TAGS[1], "Two", "Three")
    params = told(hermes, *written, tools=TOOLS)
    chunks, _ = hermes.stream(params)
    assert parts_in_order(chunks) == ["text", "tool_calls", "text"]
    assert "".join(chunk["text"] for chunk in chunks) == hermes.result("infer", params)["text"] == "OneTwoThree"


@pytest.mark.parametrize(
    ("form", "invalid"), [("known", None), ("unknown", "name"), ("broken", "arguments"), ("begun", "arguments")]
)
def test_a_call_with_a_fault_is_streamed_and_its_last_piece_has_the_fault(
    hermes: RawClient, form: str, invalid: str | None
) -> None:
    params = told(hermes, "One", TAGS[0], WRITTEN[form], TAGS[1], tools=TOOLS)
    chunks, _ = hermes.stream(params)
    assert [piece.get("invalid") for piece in pieces_of(chunks)][-1] == invalid
    assert functions(called(chunks)) == functions(hermes.result("infer", params)["tool_calls"])


def test_several_answers_have_calls_of_their_own(client: RawClient) -> None:
    whole = client.result("infer", note(n=2))
    chunks, response = client.stream(note(n=2))
    assert response["result"]["answers"] == [{"finish_reason": "stop"}] * 2
    for index, answer in enumerate(whole["answers"]):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert pieces_of(own)[0]["index"] == 0
        assert functions(called(own)) == functions(answer["tool_calls"])


async def test_both_clients_have_the_pieces_and_the_calls(daemon: Daemon) -> None:
    def check(chunks: list[Chunk], calls: object) -> None:
        pieces = [piece for chunk in chunks for piece in chunk.tool_calls or ()]
        assert (pieces[0].name, len(pieces) > 100) == ("note", True)
        assert joined_calls(pieces) == calls

    params = note()
    with Client(daemon.path) as client:
        stream = client.infer_stream(**params)
        chunks = list(stream)
        assert stream.answer is not None
        check(chunks, stream.answer.tool_calls)
        whole = client.infer(**params)
    async with AsyncClient(daemon.path) as asynchronous:
        pieces = asynchronous.infer_stream(**params)
        chunks = [chunk async for chunk in pieces]
        assert pieces.answer is not None
        check(chunks, pieces.answer.tool_calls)
    assert whole.tool_calls is not None
    assert stream.answer.tool_calls is not None
    assert [call.function for call in whole.tool_calls] == [call.function for call in stream.answer.tool_calls]


def test_carctl_writes_a_streamed_call_as_one_line(daemon: Daemon) -> None:
    options = [f"--param={name}={json.dumps(value)}" for name, value in note().items() if name != "messages"]
    streamed, whole = (json.loads(carctl(daemon, "infer", "Hi", *options, *form)) for form in ([], ["--no-stream"]))
    assert functions([streamed]) == functions([whole])
    jsonschema.validate(json.loads(streamed["function"]["arguments"]), NOTE)
