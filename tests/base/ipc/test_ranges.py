"""Values of an engine's frames that are out of range are refused by the decoder."""

from typing import Any

import pytest
from msgspec import ValidationError, structs

from car_base.ipc.codec import (
    LONG_KINDS,
    MAX_REPORT_BYTES,
    FrameReader,
    FrameTooLong,
    decode_from_engine,
    encode_frame,
)
from car_base.ipc.frames import (
    DeviceMemory,
    End,
    Extra,
    FromEngine,
    Heartbeat,
    JobBegun,
    LoadFailed,
    Loading,
    Parked,
    PlainText,
    Prepared,
    RequestUpdate,
    RunningJob,
    StepDone,
    TokenIds,
    Warned,
)
from car_base.ipc.ranges import MAX_LINE, MAX_UPDATES
from car_protocol.answer import Logprob, TokenChoice, Usage
from tests.daemon.links import ready_of

NAN = float("nan")
INFINITE = float("inf")
UPDATE = RequestUpdate(1, 0, "a", 1, 5)
USAGE = Usage(1, 2, 3)


def body(message: FromEngine) -> bytes:
    return encode_frame(message)[4:]


def ready(**changes: Any) -> FromEngine:
    return structs.replace(ready_of(), **changes)


def step(**changes: Any) -> FromEngine:
    return StepDone(1, [structs.replace(UPDATE, **changes)])


def warned(event: Any, facts: Any) -> FromEngine:
    return Warned(event, facts)


@pytest.mark.parametrize(
    "message",
    [
        *(ready(sequences=number) for number in (0, -1, 257, 2**31, 2**63)),
        *(ready(context_tokens=number) for number in (0, 2**31)),
        *(ready(threads=number) for number in (0, 2**31)),
        *(ready(kv_bytes=number) for number in (-1, 2**63)),
        *(ready(rates=rates) for rates in ([NAN], [0.0], [INFINITE], [1.0] * 257)),
        *(ready(prompt_share=share) for share in (NAN, -0.1, 1.1)),
        *(ready(inputs=inputs) for inputs in ({"model": 1.0}, {"free_bytes": NAN}, {"tokens_per_s_1\n": 1.0})),
        *(ready(can=can) for can in (["\x1b[2J"], ["chat"] * 65)),
        ready(device="cpu\nforged line"),
        *(Heartbeat(1, 1.0, counters) for counters in ({"a": NAN}, {"a": INFINITE}, {"a": -1.0}, {"a" * 33: 1.0})),
        Heartbeat(1, 1.0, {str(number): 1.0 for number in range(65)}),
        *(Heartbeat(1, age, {}) for age in (NAN, -1.0, INFINITE)),
        Heartbeat(-1, 1.0, {}),
        Heartbeat(1, 1.0, {}, devices=[DeviceMemory("gpu", -1, 1)]),
        JobBegun(RunningJob(NAN, 1, 7)),
        JobBegun(RunningJob(1.0, -1, 7)),
        *(Loading(done) for done in (NAN, -0.5, 1.5)),
        LoadFailed("a" * (MAX_LINE + 1)),
        Parked(-1),
        Prepared(1, b"", -1),
        Prepared(1, b"", 1, lengths=[1] * 257),
        *(step(sequence=number) for number in (-2, 256)),
        *(step(sampled=number) for number in (-1, 2**31)),
        *(step(prompt_done=number) for number in (-1, 2**31)),
        *(step(cached=number) for number in (-1, 2**31)),
        *(step(end=End("stop", None, USAGE, ms, 1.0)) for ms in (NAN, -1.0)),
        *(step(end=End("stop", None, Usage(*counts), 1.0, 1.0)) for counts in ((-1, 0, 0), (0, -1, 0), (0, 0, -1))),
        *(step(end=End("stop", None, Usage(*counts), 1.0, 1.0)) for counts in ((2**53, 0, 0), (0, 0, 2**63))),
        *(step(extra=Extra(logprobs=[Logprob(*chosen, [])])) for chosen in ((-1, "", 0.0), (2**31, "", 0.0))),
        *(step(extra=Extra(logprobs=[Logprob(1, "", figure, [])])) for figure in (NAN, INFINITE, -INFINITE)),
        step(extra=Extra(logprobs=[Logprob(1, "", 0.0, [TokenChoice(1, "", NAN)])])),
        step(extra=Extra(vectors=[b""] * 257)),
        StepDone(1, [UPDATE] * (MAX_UPDATES + 1)),
        warned("an event\nforged line", {}),
        warned("curve.outdated", {"model": "another"}),
        warned("curve.outdated", {"why": "a" * (MAX_LINE + 1)}),
        warned("curve.outdated", {"part": NAN}),
        warned("curve.outdated", {"why": ["a"]}),
    ],
    ids=lambda message: str(message)[:70],
)
def test_a_value_that_no_engine_can_mean_is_refused(message: FromEngine) -> None:
    with pytest.raises(ValidationError):
        decode_from_engine(body(message))


def test_what_an_engine_of_any_size_may_send_is_accepted() -> None:
    largest = ready(sequences=256, context_tokens=2**31 - 1, rates=[0.001] * 256, inputs={"tokens_per_s_256": 0.0})
    for message in (largest, StepDone(1, [UPDATE] * MAX_UPDATES), Loading(1.0), warned("load.retried", {"part": 0.5})):
        assert decode_from_engine(body(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(1, 1.0, {f"c{number}": 1.0 for number in range(400_000)}),
        warned("curve.outdated", {"why": "a" * MAX_REPORT_BYTES}),
        LoadFailed("a" * MAX_REPORT_BYTES),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_long_report_is_refused_by_its_first_bytes(message: FromEngine) -> None:
    begin = encode_frame(message)[:40]
    with pytest.raises(FrameTooLong, match=r"without text or tokens announces [0-9,]+ bytes, the limit is 65,536"):
        FrameReader(long=LONG_KINDS).feed(begin)


@pytest.mark.parametrize(
    "message",
    [
        Prepared(1, bytes(MAX_REPORT_BYTES), 1),
        TokenIds(1, bytes(MAX_REPORT_BYTES)),
        PlainText(1, "a" * MAX_REPORT_BYTES),
        StepDone(1, [structs.replace(UPDATE, text="a" * MAX_REPORT_BYTES)]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_text_and_tokens_may_be_long_however_their_frames_are_cut(message: FromEngine) -> None:
    frame, reader = encode_frame(message), FrameReader(long=LONG_KINDS)
    bodies = [found for part in (frame[:5], frame[5:9], frame[9:1000], frame[1000:]) for found in reader.feed(part)]
    assert [decode_from_engine(each) for each in bodies] == [message]


def test_a_report_that_claims_to_be_long_text_by_more_members_is_refused() -> None:
    frame = bytearray(encode_frame(PlainText(1, "a" * MAX_REPORT_BYTES)))
    frame[4] += 1
    with pytest.raises(FrameTooLong):
        FrameReader(long=LONG_KINDS).feed(bytes(frame))
