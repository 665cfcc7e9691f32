"""Frames cut from a byte stream, whatever its pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_protocol.framing import LineFramer
from car_protocol.limits import MAX_FRAME_BYTES

FIRST = '{"jsonrpc":"2.0","id":1,"method":"infer","params":{"prompt":"é"}}'.encode()
SECOND = b'{"jsonrpc":"2.0","id":2,"method":"models/list"}'
BOTH = FIRST + b"\n" + SECOND + b"\n"


def cut(*pieces: bytes, limit: int = MAX_FRAME_BYTES) -> list[bytes]:
    """Return the frames of the pieces, fed one after the other."""
    framer = LineFramer(limit)
    return [frame for piece in pieces for frame in framer.feed(piece)]


@pytest.mark.parametrize("offset", range(len(BOTH) + 1))
def test_two_requests_split_anywhere_are_two_frames(offset: int) -> None:
    assert cut(BOTH[:offset], BOTH[offset:]) == [FIRST, SECOND]


def test_two_requests_byte_by_byte_are_two_frames() -> None:
    assert cut(*(bytes([byte]) for byte in BOTH)) == [FIRST, SECOND]


def test_many_frames_may_come_in_one_piece() -> None:
    assert cut(BOTH * 100) == [FIRST, SECOND] * 100


def test_a_frame_comes_out_as_soon_as_its_line_end_is_there() -> None:
    framer = LineFramer()
    assert framer.feed(FIRST) == []
    assert framer.pending == len(FIRST)
    assert framer.feed(b"\n") == [FIRST]
    assert framer.pending == 0


def test_carriage_returns_before_line_ends_are_no_part_of_frames() -> None:
    assert cut(BOTH.replace(b"\n", b"\r\n")) == [FIRST, SECOND]
    assert cut(FIRST + b"\r", b"\n") == [FIRST]


def test_only_one_carriage_return_belongs_to_the_line_end() -> None:
    assert cut(b"a\r\r\n") == [b"a\r"]
    assert cut(b"a\rb\n") == [b"a\rb"]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"\n\n\n", b"  \n", b"\t\r\n"])
def test_blank_lines_are_no_frames(blank: bytes) -> None:
    assert cut(blank + FIRST + b"\n" + blank + SECOND + b"\n" + blank) == [FIRST, SECOND]


def test_a_last_line_without_end_is_no_frame() -> None:
    assert cut(FIRST + b"\n" + SECOND) == [FIRST]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("length", [9, 10])
def test_a_frame_up_to_the_limit_passes(length: int, end: bytes) -> None:
    assert cut(b"a" * length + end, limit=10) == [b"a" * length]
    assert cut(*(bytes([byte]) for byte in b"a" * length + end), limit=10) == [b"a" * length]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 11, 20])
def test_one_byte_more_overflows(size: int, end: bytes) -> None:
    framer = LineFramer(10)
    data = b"a" * 11 + end
    frames = [framer.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert not any(frames)
    assert framer.overflowed


def test_a_frame_without_end_overflows_before_it_is_held() -> None:
    framer = LineFramer(10)
    framer.feed(b"a" * 1000)
    assert framer.overflowed
    assert framer.pending == 0


@pytest.mark.parametrize(("eleventh", "too_long"), [(b"a", True), (b"\r", False)])
def test_a_byte_more_without_a_line_end_is_too_much_unless_it_may_begin_one(eleventh: bytes, too_long: bool) -> None:
    framer = LineFramer(10)
    framer.feed(b"a" * 10)
    framer.feed(eleventh)
    assert framer.overflowed is too_long
    assert framer.feed(b"\n") == ([] if too_long else [b"a" * 10])


def test_frames_before_an_overflow_are_delivered_and_none_after_it() -> None:
    framer = LineFramer(10)
    assert framer.feed(b"one\ntwo\n" + b"a" * 11 + b"\nthree\n") == [b"one", b"two"]
    assert framer.overflowed
    assert framer.feed(b"four\n") == []


def test_frames_before_an_unfinished_overflow_are_delivered() -> None:
    framer = LineFramer(10)
    assert framer.feed(b"one\n" + b"a" * 100) == [b"one"]
    assert framer.overflowed


def test_the_limit_of_the_contract_is_8_mib_without_the_line_end() -> None:
    assert MAX_FRAME_BYTES == 8_388_608
    framer = LineFramer()
    (frame,) = framer.feed(b"a" * MAX_FRAME_BYTES + b"\n")
    assert len(frame) == MAX_FRAME_BYTES
    assert framer.feed(b"a" * (MAX_FRAME_BYTES + 1) + b"\n") == []
    assert framer.overflowed


LINES = st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")).filter(lambda line: line[-1:] != b"\r")


@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"]))), st.data())
def test_frames_do_not_depend_on_the_pieces(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(line + end for line, end in lines)
    offsets = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    edges = [0, *offsets, len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    # White space that JSON does not know makes no blank line: such a frame is answered with an error.
    assert cut(*pieces) == [line for line, _ in lines if line.strip(b" \t\r")]


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 20))
def test_no_more_than_the_limit_is_ever_held_or_delivered(pieces: list[bytes], limit: int) -> None:
    framer = LineFramer(limit)
    for piece in pieces:
        assert all(len(frame) <= limit for frame in framer.feed(piece))
        # The one byte more may be the carriage return of a line end.
        assert framer.pending <= limit + 1


def test_a_line_of_other_white_space_is_a_frame_that_is_no_json() -> None:
    assert LineFramer().feed(b"\x0c\n \t\r\n\x0b\n") == [b"\x0c", b"\x0b"]


@pytest.mark.parametrize("sizes", [(1, 70_000, 1, 1, 70_000), (65_535, 1, 1), (100_000,) * 3, (3,) * 30_000])
def test_pieces_of_every_size_become_one_frame_and_are_counted(sizes: tuple[int, ...]) -> None:
    framer = LineFramer()
    pieces = [bytes([97 + number % 26]) * size for number, size in enumerate(sizes)]
    assert not any(framer.feed(piece) for piece in pieces)
    assert framer.pending == sum(sizes)
    assert framer.feed(b"\nb") == [b"".join(pieces)]
    assert framer.pending == 1
