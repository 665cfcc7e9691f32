"""Frames between the processes."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.engine.codec import FrameReader, decode_from_engine, decode_to_engine, encode_frame
from car_daemon.engine.frames import (
    Chat,
    Detokenize,
    End,
    Extra,
    FromEngine,
    Halt,
    Heartbeat,
    LoadFailed,
    Loading,
    Park,
    Parked,
    PlainText,
    Prepare,
    Prepared,
    Quit,
    Reading,
    Refused,
    Resume,
    Row,
    StepDone,
    ToEngine,
    TokenIds,
    Tokenize,
    Warned,
)
from car_daemon.engine.output.format import Tags
from car_protocol.answer import Logprob, TokenChoice, Usage
from car_protocol.conversation import Function, FunctionCall, Message, NamedTool, TextPart, Tool, ToolCall
from car_protocol.sampling import Dry, Mirostat, Sampling, Xtc
from tests.daemon.engine.fakes import run_command

CALL = ToolCall("1", FunctionCall("f", "{}"))
READING = Reading(Tags("<think>", "</think>"), inside=True, tools="hermes", markers=("<think>",))
TO_ENGINE: list[ToEngine] = [
    Prepare(
        key=1,
        prompt=None,
        tokens=None,
        chat=Chat(
            messages=[Message("user", "hi"), Message("user", [TextPart("€")]), Message("assistant", tool_calls=[CALL])],
            tools=[Tool("function", Function("f", parameters={"type": "object"}))],
            tool_choice=NamedTool("f"),
            template_args={"deep": [None, {"a": 1.5}]},
            reasoning="off",
        ),
        parse_special=False,
        max_tokens=None,
        sampling=Sampling(dry=Dry(1.0), xtc=Xtc(0.5, 0.1), mirostat=Mirostat(2), logit_bias={"1": -100.0}),
        grammar=None,
        json_schema={"enum": [1, None, "€"]},
    ),
    Prepare(
        key=2**53,
        prompt="\0",
        tokens=None,
        chat=None,
        parse_special=True,
        max_tokens=2**31 - 1,
        sampling=Sampling(),
        grammar='root ::= "a"',
        json_schema=None,
    ),
    run_command(3, [0, 2**31 - 1], stop=["END"], logprobs=0, constraint="start: A", reading=READING),
    Halt(4, deadline=True),
    Tokenize(5, "text", add_special=True, parse_special=False),
    Detokenize(6, [1, 2], special=True),
    Park(7),
    Resume(8),
    Quit(),
]
END = End("stop", "END", Usage(1, 2, 3), 1.5, 2.5)
EXTRA = Extra([4], [Logprob(4, "a", -0.5, [TokenChoice(4, "a", -0.5)])], "hm", [CALL])
FROM_ENGINE: list[FromEngine] = [
    Loading(0.5),
    LoadFailed("the file is not a model"),
    Prepared(1, b"\x01\0\0\0", 8, "start: A", READING),
    Refused(2, "context_exceeded", {"context_tokens": 256, "prompt_tokens": None}),
    TokenIds(3, [1, 2]),
    PlainText(4, "text"),
    StepDone(7, [Row(1, 0, "a", 1, 5), Row(2, 3, "", 1, 9, EXTRA, END)]),
    Parked(9),
    Heartbeat(8, 1.25, {"decode_steps": 3.0}),
    Warned("capacity.lowered", {"asked": 8}),
]


def bodies(data: bytes) -> list[bytes]:
    return FrameReader().feed(data)


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_what_an_engine_is_told_arrives_as_it_was(message: ToEngine) -> None:
    (body,) = bodies(encode_frame(message))
    assert decode_to_engine(body) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_what_an_engine_says_arrives_as_it_was(message: FromEngine) -> None:
    (body,) = bodies(encode_frame(message))
    assert decode_from_engine(body) == message


def test_a_part_of_a_frame_waits_for_the_rest() -> None:
    frame = encode_frame(Quit())
    reader = FrameReader()
    assert [reader.feed(frame[:2]), reader.feed(frame[2:-1])] == [[], []]
    assert reader.feed(frame[-1:]) == [frame[4:]]


def test_nothing_read_is_nothing_said() -> None:
    assert bodies(b"") == []


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(TO_ENGINE), max_size=8), st.lists(st.integers(0, 2000), max_size=20))
def test_any_cutting_gives_the_same_frames(messages: list[ToEngine], places: list[int]) -> None:
    data = b"".join(map(encode_frame, messages))
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    reader = FrameReader()
    heard = [body for begin, end in pairwise(edges) for body in reader.feed(data[begin:end])]
    assert [decode_to_engine(body) for body in heard] == messages
