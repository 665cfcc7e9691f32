"""The pending answer of a request: its pieces, whole or as a stream, also where its engine ends before them."""

from typing import Any, cast

import msgspec
import pytest

from car_base.ipc.codec import FrameReader, decode_to_engine, encode_frame
from car_base.ipc.frames import CallDelta, End, Extra, Prepared, RequestUpdate
from car_daemon.connections.answer_pieces import AnswerPieces
from car_daemon.engines.link import WrongFrame
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder, Siblings
from car_daemon.requests.explanations import Explanations
from car_daemon.requests.generation import GenerationAnswer, request_of
from car_daemon.telemetry.metrics import Latencies
from car_protocol.answer import Answer, Usage
from car_protocol.conversation import FunctionCall, ToolCall
from car_protocol.infer import GenerationOptions, InferParams, PromptParams

ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)
NAME, END = CallDelta(0, id="a", name="f"), CallDelta(0, ended=True)
ENDED = End("stop", None, Usage(1, 0, 3), 0.0, 0.0)
WHOLE = ToolCall("a", FunctionCall("f", '{"a": 1}'))


class Client:
    """The client's side of an answer."""

    def __init__(self) -> None:
        self.pieces = AnswerPieces()  # of a stream
        self.answers: list[Answer] = []
        self.chunks = 0

    def chunk(self, text: str, extra: Extra | None) -> None:
        self.chunks += 1
        self.pieces.add(text, extra)

    def result(self, result: Answer) -> None:
        self.answers.append(result)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that came."""
        return self.pieces.calls or self.answers[-1].tool_calls or []


def running(client: Client, *, streams: bool, params: InferParams | None = None) -> GenerationAnswer:
    """Return the answer to a request that runs."""
    params = params or InferParams(prompt="a")
    request = request_of(params, ORIGIN, [7], 0, "m", size=1, now=0.0)
    responder = cast(Responder, client)
    answer = GenerationAnswer(
        request,
        params,
        ORIGIN,
        responder,
        streams=streams,
        latencies=Latencies(),
        clock=lambda: 1.0,
        siblings=Siblings((7,)),
        fingerprint=lambda: "card-1",
        explain=Explanations(lambda _: True, lambda: 1.0).add,
    )
    answer.prepared(Prepared(7, bytes(4), 8), routed=False)
    request.leased_at = 0.5
    answer.as_run()
    return answer


def add(answer: GenerationAnswer, *calls: CallDelta | str, end: End | None = None) -> None:
    """Add a step with pieces of a call."""
    answer.add(RequestUpdate(7, 0, "", 1, 1, Extra(calls=list(calls)), end))


# A value for every member that an engine needs, which is not the default.
OPTIONS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 5,
    "json_schema": {"type": "object"},
    "lenient": True,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "parallel_tool_calls": False,
    "reasoning": "keep",
    "reasoning_tokens": 9,
    "template_args": {"a": 1},
    "priority": "throughput",
    "stop": ["END"],
    "seed": 7,
    "reproducible": True,
    "logprobs": 2,
    "return_tokens": True,
    "lora": [{"name": "b", "scale": 0.5}, {"name": "off", "scale": 0.0}, {"name": "a", "scale": 1.0}],
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.25,
    "typical_p": 0.5,
    "top_n_sigma": 2.0,
    "xtc": {"probability": 0.5, "threshold": 0.25},
    "dry": {"multiplier": 1.0},
    "mirostat": {"version": 2},
    "repeat_penalty": 2.0,
    "repeat_last_n": 3,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "logit_bias": {"1": 1.0},
    "ignore_eos": True,
}
# Members that exclude others of these.
ELSEWHERE = {"prompt", "suffix", "tokens", "parse_special", "grammar", "tool_choice", "continue_last"}


def test_an_engine_gets_every_member_that_it_needs_as_the_client_sent_it() -> None:
    assert set(PromptParams.__struct_fields__) == OPTIONS.keys() | ELSEWHERE
    answer = running(Client(), streams=False, params=msgspec.convert(OPTIONS, InferParams))
    prepare, run = answer.as_prepare(), answer.as_run()
    assert prepare.params == msgspec.convert(OPTIONS, PromptParams)
    own = {name: value for name, value in OPTIONS.items() if name in GenerationOptions.__struct_fields__}
    assert run.options == msgspec.convert(own, GenerationOptions)
    for frame in (prepare, run):
        assert decode_to_engine(FrameReader().feed(encode_frame(frame))[0]) == frame


def test_adapters_that_change_nothing_are_left_out_and_others_are_sorted() -> None:
    options = msgspec.convert({"lora": OPTIONS["lora"]}, GenerationOptions)
    assert options.adapters == (("a", 1.0), ("b", 0.5))


def test_members_that_the_client_left_out_cost_a_frame_nothing() -> None:
    answer = running(Client(), streams=False, params=InferParams(prompt="a", seed=0))
    assert msgspec.to_builtins(answer.as_prepare().params) == {"prompt": "a"}
    assert msgspec.to_builtins(answer.as_run().options) == {}


@pytest.mark.parametrize("streams", [True, False])
def test_the_pieces_of_a_call_are_the_call(streams: bool) -> None:
    client = Client()
    answer = running(client, streams=streams)
    add(answer, NAME)
    add(answer, CallDelta(0, arguments='{"a": '), CallDelta(0, arguments="1}"))
    add(answer, END, end=ENDED)
    answer.complete()
    assert client.calls == [WHOLE]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_call_that_an_engine_left_at_a_deadline_is_marked_as_a_part(streams: bool, ended: bool) -> None:
    client = Client()
    answer = running(client, streams=streams)
    add(answer, NAME, CallDelta(0, arguments='{"a": 1}'), *([END] if ended else []))
    answer.complete()  # without a word of the engine
    assert client.answers[0].finish_reason == "deadline"
    assert [call.invalid or None for call in client.calls] == [None if ended else "arguments"]


def test_an_answer_that_runs_again_has_no_piece_of_its_first_run() -> None:
    client = Client()
    answer = running(client, streams=False)
    add(answer, NAME, CallDelta(0, arguments='{"a'))
    answer.request.retried = True
    answer.as_run()
    add(answer, NAME, CallDelta(0, arguments='{"a": 1}'), END, end=ENDED)
    answer.complete()
    assert client.calls == [WHOLE]


def test_an_engine_that_writes_more_than_its_tokens_can_be_is_ended() -> None:
    answer = running(Client(), streams=False)
    for _ in range(8):
        answer.add(RequestUpdate(7, 0, "x" * 1000, 1, 1))
    with pytest.raises(WrongFrame):
        answer.add(RequestUpdate(7, 0, "x" * 1_000_000, 0, 1))
