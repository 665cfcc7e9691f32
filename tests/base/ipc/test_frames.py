"""Frames between the processes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.codec import (
    MAX_FRAME_BYTES,
    FrameReader,
    FrameTooLong,
    decode_from_engine,
    decode_to_engine,
    encode_frame,
    packed_reading,
    packed_tokens,
)
from car_base.ipc.frames import (
    CallDelta,
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
    RequestUpdate,
    Resume,
    RunningJob,
    StepDone,
    ToEngine,
    TokenIds,
    Tokenize,
    TokensCounted,
    Warned,
)
from car_base.ipc.types import Tags
from car_protocol.answer import Logprob, TokenChoice, Usage
from car_protocol.conversation import Function, FunctionCall, Message, NamedTool, TextPart, Tool, ToolCall
from car_protocol.infer import PromptParams
from car_protocol.sampling import Dry, Mirostat, Xtc
from tests.engine.fakes import run_command

CALL = ToolCall("1", FunctionCall("f", "{}"))
READING = Reading(Tags("<think>", "</think>"), inside=True, tools="hermes", markers=("<think>",))
TO_ENGINE: list[ToEngine] = [
    Prepare(
        1,
        1000,
        PromptParams(
            messages=[Message("user", "hi"), Message("user", [TextPart("€")]), Message("assistant", tool_calls=[CALL])],
            tools=[Tool("function", Function("f", parameters={"type": "object"}))],
            tool_choice=NamedTool("f"),
            template_args={"deep": [None, {"a": 1.5}]},
            reasoning="off",
            dry=Dry(1.0),
            xtc=Xtc(0.5, 0.1),
            mirostat=Mirostat(2),
            logit_bias={"1": -100.0},
            json_schema={"enum": [1, None, "€"]},
        ),
        "1000:",
    ),
    Prepare(
        2**53,
        1000,
        PromptParams(prompt="\0", parse_special=True, max_tokens=2**31 - 1, grammar='root ::= "a"'),
    ),
    run_command(3, [0, 2**31 - 1], stop=["END"], logprobs=0, constraint="start: A", reading=READING),
    Halt(4, deadline=True),
    Tokenize(5, "text", add_special=True, parse_special=False),
    Tokenize(
        5, None, add_special=False, parse_special=False, chat=Chat(messages=[Message("user", "a")]), count_only=True
    ),
    Detokenize(6, [1, 2], special=True),
    Park(7),
    Resume(8),
    Quit(),
]
END = End("stop", "END", Usage(1, 2, 3), 1.5, 2.5)
CALLS: list[CallDelta | str] = [CallDelta(0, "1", "f"), CallDelta(0, invalid="name", ended=True), "so"]
EXTRA = Extra([4], [Logprob(4, "a", -0.5, [TokenChoice(4, "a", -0.5)])], "hm", CALLS)
FROM_ENGINE: list[FromEngine] = [
    Loading(0.5),
    LoadFailed("the file is not a model"),
    Prepared(1, b"\x01\0\0\0", 8, "start: A", packed_reading(READING)),
    Refused(2, "context_exceeded", {"context_tokens": 256, "prompt_tokens": None}),
    TokenIds(3, packed_tokens([1, 2])),
    TokensCounted(3, 2),
    PlainText(4, "text"),
    StepDone(7, [RequestUpdate(1, 0, "a", 1, 5), RequestUpdate(2, 3, "", 1, 9, EXTRA, END)]),
    Parked(9),
    Heartbeat(8, 1.25, {"decode_steps": 3.0}),
    Heartbeat(8, 1.25, {}, RunningJob(2.5, 100, 7)),
    Warned("capacity.lowered", {"asked": 8}),
]


def bodies(data: bytes) -> list[bytes]:
    return FrameReader().feed(data)


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_a_frame_to_an_engine_arrives_unchanged(message: ToEngine) -> None:
    (body,) = bodies(encode_frame(message))
    assert decode_to_engine(body) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_a_frame_of_an_engine_arrives_unchanged(message: FromEngine) -> None:
    (body,) = bodies(encode_frame(message))
    assert decode_from_engine(body) == message


def test_a_part_of_a_frame_waits_for_the_rest() -> None:
    frame = encode_frame(Quit())
    reader = FrameReader()
    assert [reader.feed(frame[:2]), reader.feed(frame[2:-1])] == [[], []]
    assert reader.feed(frame[-1:]) == [frame[4:]]


@pytest.mark.parametrize("before", [b"", encode_frame(Quit())], ids=["the first frame", "a later frame"])
def test_a_frame_longer_than_the_limit_is_refused_by_its_length_alone(before: bytes) -> None:
    with pytest.raises(FrameTooLong, match=r"announces 67,108,865 bytes, the limit is 67,108,864"):
        FrameReader().feed(before + (MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_a_frame_as_long_as_the_limit_is_accepted() -> None:
    reader = FrameReader(max_bytes=5)
    assert reader.feed(b"\x05\0\0\0hello") == [b"hello"]
    with pytest.raises(FrameTooLong, match="announces 6 bytes, the limit is 5"):
        reader.feed(b"\x06\0\0\0")


def test_no_bytes_are_no_frames() -> None:
    assert bodies(b"") == []


@given(st.lists(st.sampled_from(TO_ENGINE), max_size=8), st.lists(st.integers(0, 2000), max_size=20))
def test_any_cutting_gives_the_same_frames(messages: list[ToEngine], places: list[int]) -> None:
    data = b"".join(map(encode_frame, messages))
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    reader = FrameReader()
    arrived = [body for begin, end in pairwise(edges) for body in reader.feed(data[begin:end])]
    assert [decode_to_engine(body) for body in arrived] == messages
