"""Pieces of a stream that are written as they come, without waking a task up."""

import asyncio
import copy
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_client.results import Answer, Chunk, ToolCallDelta
from car_http.daemon.connection import DaemonConnection, Ended, Event
from car_http.daemon.plain import leading_text
from car_http.daemon.reading import Turns
from car_http.dialects.anthropic.writer import MessagesWriter
from car_http.dialects.infill import InfillWriter
from car_http.dialects.ollama.writer import OllamaWriter
from car_http.dialects.openai_chat_writer import ChatWriter
from car_http.dialects.openai_completions import CompletionWriter
from car_http.dialects.responses.tools import read_tools
from car_http.dialects.responses.writer import Facts, ResponsesWriter
from car_http.protocol import ChunkedPieces
from car_protocol.answer import Chunk as SentChunk
from car_protocol.envelope import Notification, Result, encode_message
from car_protocol.methods import CHUNK
from tests.client.samples import ANSWER


class Reader:
    """A transport and its flow control: what was written, and whether the client reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write_paused = False
        self.closing = False

    def is_closing(self) -> bool:
        """As a transport."""
        return self.closing

    def write(self, data: bytes) -> None:
        """As a transport."""
        self.written.append(data)


def pieces(reader: Any) -> ChunkedPieces:
    """Return the pieces of a body for a client."""
    return ChunkedPieces(reader, reader)


def chunk(seq: int) -> bytes:
    """Return the frame of a chunk."""
    return encode_message(Notification(CHUNK, {"id": 1, "seq": seq, "text": "a"}))


def test_an_empty_piece_does_not_end_the_body() -> None:
    reader = Reader()
    pieces(reader).write(b"")
    pieces(reader).write(b"x" * 16)
    assert reader.written == [b"10\r\n" + b"x" * 16 + b"\r\n"]


def test_pieces_wait_for_a_client_that_does_not_read_or_left() -> None:
    reader = Reader()
    offer = pieces(reader).offering(lambda text: b"<" + text + b">")
    assert pieces(reader).ready
    assert offer(b"a" * 14)
    for paused, closing in ((True, False), (False, True)):
        reader.write_paused, reader.closing = paused, closing
        assert not pieces(reader).ready
        assert not offer(b"b")
    assert reader.written == [b"10\r\n<" + b"a" * 14 + b">\r\n"]


async def test_events_that_are_declined_or_come_meanwhile_wait_in_order() -> None:
    connection = DaemonConnection(lambda _: None, Turns())
    taken: list[Event] = []
    accepts = True

    def take(events: list[Event]) -> bool:
        if accepts:
            taken.extend(events)
        return accepts

    connection.on_events(take)
    connection.data_received(chunk(0))  # no task waits: it has events to write before this one
    assert len(await connection.events()) == 1
    assert taken == []
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(1))
    assert len(taken) == 1
    assert not waiting.done()
    accepts = False
    connection.data_received(encode_message(Result(1, ANSWER)))
    (last,) = await waiting
    assert isinstance(last, Ended)


async def test_a_failure_to_write_pieces_ends_the_call_in_its_task() -> None:
    connection = DaemonConnection(lambda _: None, Turns())

    def take(events: list[Event]) -> bool:
        raise ZeroDivisionError(len(events))

    connection.on_events(take)
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(0))
    with pytest.raises(ZeroDivisionError):
        await waiting


ENDED = msgspec.convert(ANSWER | {"text": "ab"}, Answer)
PLAIN = st.text() | st.text(alphabet='"\\,:{}text ', max_size=20)


def cut(data: bytes) -> tuple[str, bytes]:
    """Return the text that is cut out of frames, and the bytes that are left to decode."""
    text, rest = leading_text(data)
    return msgspec.json.decode(b'"' + text + b'"'), rest


@given(text=PLAIN, seq=st.integers(0, 2**53), call_id=st.integers(1, 2**53))
def test_a_text_that_is_cut_out_of_its_chunk_is_the_decoded_one(text: str, seq: int, call_id: int) -> None:
    frame = encode_message(Notification(CHUNK, {"id": call_id, "seq": seq, "text": text}))
    assert cut(frame) == (text, b"" if text else frame)


@given(
    text=PLAIN,
    more=st.sampled_from(
        [{"index": 1}, {"reasoning": "x"}, {"tokens": [1]}, {"logprobs": []}, {"tool_calls": [{"index": 0}]}]
    ),
)
def test_a_chunk_of_more_than_a_text_is_decoded(text: str, more: dict[str, Any]) -> None:
    for params in ({"id": 1, "seq": 0, **more, "text": text}, {"id": 1, "seq": 0, "text": text, **more}):
        frame = encode_message(Notification(CHUNK, params))
        assert cut(frame) == ("", frame)
        assert cut(frame[:-1]) == ("", frame[:-1])
        assert cut(chunk(0) + frame + chunk(1)) == ("a", frame + chunk(1))


@given(texts=st.lists(PLAIN.filter(bool), max_size=3), place=st.integers(0, 40))
def test_texts_are_joined_and_a_part_of_a_chunk_behind_them_is_left(texts: list[str], place: int) -> None:
    frames = [encode_message(Notification(CHUNK, {"id": 1, "seq": 0, "text": text})) for text in texts]
    part = chunk(0)[:place]
    assert cut(b"".join(frames) + part) == ("".join(texts), part)
    assert cut(part[5:]) == ("", part[5:])


def test_the_daemons_own_chunks_are_cut() -> None:
    frame = encode_message(Notification(CHUNK, SentChunk(id=1, seq=3, text="a")))
    assert cut(frame) == ("a", b"")


def repeatable(data: bytes) -> bytes:
    """Return the bytes of a stream without the times of Ollama's lines and the ids of items."""
    return re.sub(rb'"created_at":"[^"]*"|"msg_[^"]*"', b"", data)


@pytest.mark.parametrize(
    "writer",
    [
        ChatWriter("guide"),
        ChatWriter("\0"),
        ChatWriter("guide", usage=True),
        CompletionWriter("guide", usage=True, echoed="Hi"),
        InfillWriter("guide"),
        MessagesWriter("guide"),
        OllamaWriter("guide", chats=True),
        OllamaWriter("\0", chats=False),
        ResponsesWriter(Facts("guide", {}), read_tools([])),
    ],
    ids=lambda writer: type(writer).__name__,
)
def test_a_text_that_is_cut_out_is_written_as_its_chunk(writer: Any) -> None:
    other = copy.deepcopy(writer)
    for each in (writer, other):
        each.begin()
        each.chunk(Chunk(id=1, seq=0, text="a"))
    decoded = writer.chunk(Chunk(id=1, seq=1, text='b "c"')) + writer.chunk(Chunk(id=1, seq=2, text="d"))
    cut_out = other.of_text(b'b \\"c\\"') + other.of_text(b"d")
    assert repeatable(cut_out) == repeatable(decoded)
    assert repeatable(other.end(ENDED)) == repeatable(writer.end(ENDED))


@pytest.mark.parametrize("writer", [MessagesWriter("guide"), ResponsesWriter(Facts("guide", {}), read_tools([]))])
def test_texts_are_cut_out_while_a_block_of_text_is_open(writer: Any) -> None:
    assert writer.of_text is None
    writer.chunk(Chunk(id=1, seq=0, text="", reasoning="Hm."))
    assert writer.of_text is None
    writer.chunk(Chunk(id=1, seq=1, text="a"))
    assert writer.of_text is not None
    writer.chunk(Chunk(id=1, seq=2, text="", tool_calls=[ToolCallDelta(index=0, id="c", name="f", arguments="{}")]))
    assert writer.of_text is None


async def test_a_text_alone_is_taken_as_it_is_and_others_in_order_after_it() -> None:
    connection = DaemonConnection(lambda _: None, Turns())
    connection.begin("infer_stream", {})
    texts: list[bytes] = []

    def take(text: bytes) -> bool:
        texts.append(text)
        return True

    connection.on_events(lambda _: False)
    connection.on_texts(take)
    connection.data_received(chunk(0))  # no task waits: it has events to write before this one
    assert len(await connection.events()) == 1
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(1) + chunk(2) + chunk(3)[:20])
    connection.data_received(chunk(3)[20:])
    connection.data_received(chunk(4))
    assert texts == [b"aa"]
    assert [event.seq for event in await waiting if isinstance(event, Chunk)] == [3, 4]
    connection.on_texts(lambda _: False)  # as for a client that does not read
    waiting = asyncio.create_task(connection.events())
    await asyncio.sleep(0)
    connection.data_received(chunk(5) + chunk(6))
    assert [event.seq for event in await waiting if isinstance(event, Chunk)] == [5, 6]
