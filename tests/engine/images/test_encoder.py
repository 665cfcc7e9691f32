"""Images of prompts: encoded beside the loop, decoded in place of tokens, never twice where cells are at hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from car_base.ipc.frames import Fault, ImageSlot
from car_base.ipc.inbox import Inbox
from car_engine.batching.sequences import ImageRows, Phase
from car_engine.images.encoder import Encode, Encoded, Encoder
from car_engine.images.image_file import ImageError
from car_engine.images.piece_cache import ImagePiece, Key, Piece, PieceCache, TokensPiece
from tests.engine.fakes import FakeContext, FakeEngine, run_command, solo

# On the ledger an image's rows are tokens: here 20 of them, after 4 of text and before 3.
ROWS = [1 + place % 25 for place in range(20)]
PROMPT = [3, 4, 5, 6, *[-9 - place for place in range(20)], 7, 8, 9]
SEEN = [3, 4, 5, 6, *ROWS, 7, 8, 9]
IMAGE = ImageSlot(4, 20, b"file")
WORDS = [5, 6, 7]


def engine_of(**more: Any) -> FakeEngine:
    return FakeEngine(FakeContext(3, context_tokens=128, batch_tokens=16), **more)


def run(key: int, max_tokens: int = 6) -> Any:
    return run_command(key, PROMPT, max_tokens, namespace="me", images=[IMAGE])


def encoded(key: int) -> Encoded:
    return Encoded(key, [ImageRows(4, ROWS)], [])


def test_a_request_waits_for_its_image_and_is_answered_as_if_its_rows_were_tokens() -> None:
    engine = engine_of()
    engine.turn(run(1))
    assert [job.key for job in engine.encodes] == [1]
    assert not engine.table.busy, "the loop has nothing to do until the image comes"
    engine.turn(encoded(1))
    engine.finish()
    assert engine.tokens(1) == solo(SEEN, 6)


def test_others_go_on_meanwhile() -> None:
    engine = engine_of()
    engine.turn(run(1), run_command(2, WORDS, 9))
    engine.finish()
    assert engine.tokens(2) == solo(WORDS, 9)
    engine.turn(encoded(1), run_command(3, WORDS, 9))
    engine.finish()
    assert (engine.tokens(1), engine.tokens(3)) == (solo(SEEN, 6), solo(WORDS, 9))


class WatchedContext(FakeContext):
    """Keeps which positions came as rows of an image."""

    def __init__(self) -> None:
        super().__init__(3, context_tokens=128, batch_tokens=16)
        self.pictured: list[int] = []

    def decode_rows(self, rows: list[int], start: int, number: int, *, output: bool) -> int:
        """Decode rows of an image."""
        self.pictured += range(start, start + len(rows))
        return super().decode_rows(rows, start, number, output=output)


def test_the_places_of_an_image_and_no_others_are_decoded_as_rows() -> None:
    context = WatchedContext()
    engine = FakeEngine(context)
    engine.turn(run(1), run_command(2, WORDS, 30))
    engine.turn(encoded(1))
    engine.finish()
    assert context.pictured == list(range(4, 24))
    assert all(len(batch.tokens) <= 16 for batch in context.batches)


def test_an_image_that_is_in_the_cells_already_is_not_encoded_again() -> None:
    engine = engine_of()
    engine.turn(run(1))
    engine.turn(encoded(1))
    engine.finish()
    engine.turn(run(2))
    engine.finish()
    assert [job.key for job in engine.encodes] == [1]
    assert (engine.tokens(2), engine.ends(2)[0].usage.cached_tokens) == (solo(SEEN, 6), len(PROMPT) - 1)


def test_a_request_with_the_same_image_follows() -> None:
    engine = engine_of()
    engine.turn(run(1), run(2))
    assert [sequence.phase for sequence in engine.table.sequences[:2]] == [Phase.ENCODE, Phase.FOLLOW]
    assert not engine.table.busy
    engine.turn(encoded(1))
    engine.turn(encoded(2))
    engine.finish()
    assert (engine.tokens(1), engine.tokens(2)) == (solo(SEEN, 6), solo(SEEN, 6))


def test_a_follower_goes_on_when_its_leader_is_halted_before_its_image_came() -> None:
    engine = engine_of()
    engine.turn(run(1), run(2))
    engine.halt(1)
    engine.turn(encoded(1))
    engine.turn(encoded(2))
    engine.finish()
    assert engine.tokens(2) == solo(SEEN, 6)


@pytest.mark.parametrize("saved_bytes", [0, 1000])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_request_may_be_parked_at_any_time(saved_bytes: int, turns: int) -> None:
    engine = engine_of(saved_bytes=saved_bytes)
    engine.turn(run(1))
    if turns:
        engine.turn(encoded(1))
    for _ in range(turns):
        engine.turn()
    engine.park(1)
    engine.turn(encoded(1), run_command(2, WORDS, 5))
    engine.finish()
    engine.resume(1)
    engine.turn(encoded(1))
    engine.finish()
    assert engine.tokens(1) == solo(SEEN, 6)


@pytest.mark.parametrize("fault", ["image", "projector"])
def test_a_request_whose_image_cannot_be_encoded_ends_alone(fault: Fault) -> None:
    engine = engine_of()
    engine.turn(run(1), run_command(2, WORDS, 5))
    engine.turn(Encoded(1, [], [], fault))
    engine.finish()
    assert engine.ends(1)[0].fault == fault
    assert engine.tokens(2) == solo(WORDS, 5)


def test_an_image_that_comes_too_late_changes_nothing() -> None:
    engine = engine_of()
    engine.turn(run(1))
    engine.halt(1)
    engine.turn(encoded(1))
    assert not engine.table.busy
    assert [end.fault for end in engine.ends(1)] == [None]


def test_images_of_ended_requests_are_dropped() -> None:
    engine = engine_of()
    engine.turn(run(1), run_command(2, PROMPT, 6, images=[IMAGE]), run_command(3, PROMPT, 6, images=[IMAGE]))
    engine.halt(1)
    engine.park(2)
    assert [(job.key, job.wanted) for job in engine.encodes] == [(1, False), (2, False), (3, True)]
    engine.resume(2)
    assert engine.encodes[-1] == Encode(2, 0, [IMAGE], wanted=True)
    engine.turn(encoded(2), encoded(3))
    engine.finish()
    assert (engine.tokens(2), engine.tokens(3)) == (solo(SEEN, 6), solo(SEEN, 6))


def pieces(_: bytes) -> list[Piece]:
    return [TokensPiece([1, 2]), ImagePiece(np.zeros((17, 4), np.float32)), TokensPiece([3])]


class Results:
    """An encoder, and the results that it reported."""

    def __init__(
        self, encode: Callable[[Any], list[Piece]], decode: Callable[[bytes], Any] = lambda data: data
    ) -> None:
        self.all: list[Encoded] = []
        self.encoder = Encoder(lambda data: encode(decode(data)), encode, Inbox(), self.all.append)

    def of(self, *jobs: Encode) -> list[Encoded]:
        """Return the results of jobs that come at once."""
        self.all.clear()
        self.encoder.turn(list(jobs))
        while self.encoder.busy:
            self.encoder.turn([])
        return list(self.all)


def test_tokens_around_the_rows_of_an_image_keep_their_places() -> None:
    (result,) = Results(pieces).of(Encode(1, 0, [IMAGE, ImageSlot(40, 20, b"other")]))
    assert result.pictures is not None
    assert [(picture.start, picture.end) for picture in result.pictures] == [(6, 23), (42, 59)]
    assert result.tokens == [(4, [1, 2]), (23, [3]), (40, [1, 2]), (59, [3])]


def test_the_projector_is_spared_what_is_not_wanted() -> None:
    files: list[bytes] = []

    def encode(file: bytes) -> list[Piece]:
        files.append(file)
        # It becomes unwanted in the middle.
        jobs[1].wanted = False
        return pieces(file)

    jobs = [
        Encode(1, 0, [IMAGE], wanted=False),
        Encode(2, 0, [ImageSlot(0, 20, b"first"), IMAGE]),
        Encode(3, 0, [IMAGE]),
    ]
    told = Results(encode).of(*jobs)
    assert files == [b"first", b"file"]
    assert [each.key for each in told] == [3]


@pytest.mark.parametrize(
    ("error", "fault"), [(ImageError("the image is damaged"), "image"), (RuntimeError(), "projector")]
)
def test_a_damaged_image_is_told_from_a_projector_that_fails(error: Exception, fault: Fault) -> None:
    def fail(data: bytes) -> list[Piece]:
        if data == b"bad":
            raise error
        return pieces(data)

    assert Results(fail).of(Encode(1, 0, [IMAGE, ImageSlot(24, 20, b"bad")])) == [Encoded(1, [], [], fault)]


def test_an_image_of_another_size_than_was_counted_fails_the_request() -> None:
    assert Results(pieces).of(Encode(1, 0, [ImageSlot(4, 21, b"")])) == [Encoded(1, [], [], "projector")]


def test_the_same_image_is_decoded_and_encoded_once() -> None:
    decoded: list[bytes] = []
    encoded: list[bytes] = []

    def decode(data: bytes) -> bytes:
        decoded.append(data)
        return data.upper()

    def encode(pixels: bytes) -> list[Piece]:
        encoded.append(pixels)
        return pieces(pixels)

    images = [ImageSlot(start, 20, data) for start, data in ((0, b"a"), (20, b"b"), (40, b"a"))]
    (result,) = Results(encode, decode).of(Encode(1, 0, images))
    assert (decoded, encoded) == ([b"a", b"b"], [b"A", b"B"])
    assert [picture.start for picture in result.pictures] == [2, 22, 42]


def test_a_file_that_cannot_be_decoded_ends_its_request_as_a_damaged_image() -> None:
    def fail(_: bytes) -> bytes:
        raise ImageError("the image is damaged or truncated")

    assert Results(pieces, fail).of(Encode(1, 0, [IMAGE])) == [Encoded(1, [], [], "image")]


def test_a_request_with_many_images_does_not_keep_others_waiting() -> None:
    many = Encode(1, 0, [ImageSlot(20 * place, 20, bytes([place])) for place in range(5)])
    results = Results(pieces).of(many, Encode(2, 0, [IMAGE]))
    assert [result.key for result in results] == [2, 1]
    assert len(results[1].pictures) == 5


def test_a_user_with_many_requests_does_not_keep_another_waiting() -> None:
    many = [Encode(key, 1, [ImageSlot(0, 20, bytes([key]))]) for key in range(5)]
    results = Results(pieces).of(*many, Encode(9, 2, [IMAGE]))
    assert [result.key for result in results] == [0, 9, 1, 2, 3, 4]


def test_a_tenant_with_many_requests_does_not_keep_another_waiting() -> None:
    editor, chat = ("9", "editor", "label"), ("9", "chat", "label")
    many = [Encode(key, 1, [ImageSlot(0, 20, bytes([key]))], editor) for key in range(5)]
    results = Results(pieces).of(*many, Encode(9, 1, [IMAGE], chat))
    assert [result.key for result in results] == [0, 9, 1, 2, 3, 4]


def test_the_images_used_last_are_cached() -> None:
    a, b, c, large = ((0, name) for name in (b"a", b"b", b"c", b"large"))
    cache = PieceCache(limit=2 * 4 * 8)
    made: dict[Key, list[Piece]] = {
        key: [TokensPiece([1]), ImagePiece(np.zeros((2, 4), np.float32))] for key in (a, b, c)
    }
    for key in (a, b):
        cache.put(key, made[key])
    assert cache.get(a) is made[a]
    cache.put(c, made[c])
    assert [cache.get(key) is not None for key in (a, b, c)] == [True, False, True]
    cache.put(large, [ImagePiece(np.zeros((99, 4), np.float32))])
    assert [cache.get(key) is not None for key in (a, c, large)] == [True, True, False]


def test_an_image_is_encoded_anew_for_another_user() -> None:
    encoded: list[bytes] = []

    def decode(data: bytes) -> bytes:
        encoded.append(data)
        return data

    shared = Results(pieces, decode)
    for owner in (1, 1, 2):
        assert [result.fault for result in shared.of(Encode(1, owner, [IMAGE]))] == [None]
    assert len(encoded) == 2
