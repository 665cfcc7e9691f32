"""Images encoded before a request has a lease: bounded by memory, in turns between users and classes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.frames import NAMELESS, Fault, Forget, FromEngine, ImageSlot, Names, Prepare, Prepared
from car_engine.batching.sequences import ImageRows
from car_engine.images.ahead import EncodeAhead, RowsAhead
from car_engine.images.encoder import Encode, Encoded
from car_protocol.infer import PromptParams
from tests.engine.fakes import FakeEngine, run_command, solo
from tests.engine.images.test_encoder import PROMPT, SEEN, WORDS, encoded, engine_of, run

LIMIT = 100


def ahead_of(key: int, size: int = 20, owner: int = 0, *, urgent: bool = True, names: Names = NAMELESS) -> EncodeAhead:
    """Return a request without a lease whose images take `size` positions."""
    prepared = run_command(key, PROMPT, images=[ImageSlot(4, size, b"file")]).prepared
    prepare = Prepare(key, owner, PromptParams(priority="latency_critical" if urgent else "throughput"), "me")
    return EncodeAhead(prepare, Prepared(key, prepared.tokens, 8, images=prepared.images, owner=owner, names=names))


class Ahead:
    """Rows of one byte a position, the jobs of the encoder, and the requests that are prepared."""

    def __init__(self) -> None:
        self.jobs: list[Encode] = []
        self.prepared: list[int] = []
        self.rows = RowsAhead(self.jobs.append, self._send, row_bytes=1, limit=LIMIT)

    def add(self, *requests: EncodeAhead) -> None:
        """Add requests whose images are in no cells."""
        for request in requests:
            self.rows.add(request, cached=False)

    @property
    def begun(self) -> list[int]:
        """The requests whose images the encoder has."""
        return [job.key for job in self.jobs if job.wanted]

    def _send(self, message: FromEngine) -> None:
        assert isinstance(message, Prepared)
        self.prepared.append(message.key)


def test_a_request_is_prepared_once_its_images_are_encoded_and_finds_them_at_its_lease() -> None:
    engine = engine_of()
    engine.turn(ahead_of(1))
    assert ([job.key for job in engine.encodes], engine.prepared) == ([1], [])
    assert not engine.table.busy, "no sequence waits"
    engine.turn(encoded(1))
    assert engine.prepared == [1]
    engine.turn(run(1))
    engine.finish()
    assert engine.tokens(1) == solo(SEEN, 6)
    assert len(engine.encodes) == 1


def test_texts_use_every_sequence_while_images_are_encoded() -> None:
    engine = engine_of()
    engine.turn(*(ahead_of(key) for key in range(1, 9)))
    texts = range(11, 14)
    engine.turn(*(run_command(key, WORDS, 9) for key in texts))
    engine.finish()
    assert [engine.tokens(key) for key in texts] == [solo(WORDS, 9)] * 3


def test_images_whose_cells_are_at_hand_are_not_encoded_again() -> None:
    engine = engine_of()
    engine.turn(ahead_of(1))
    engine.turn(encoded(1))
    engine.turn(run(1))
    engine.finish()
    engine.turn(ahead_of(2))
    assert (engine.prepared, len(engine.encodes)) == ([1, 2], 1)
    engine.turn(run(2))
    engine.finish()
    assert engine.tokens(2) == solo(SEEN, 6)


@pytest.mark.parametrize("fault", ["image", "projector"])
def test_a_request_whose_image_cannot_be_encoded_ends_at_its_lease(fault: Fault) -> None:
    engine = engine_of()
    engine.turn(ahead_of(1))
    engine.turn(Encoded(1, [], [], fault))
    engine.turn(run(1), run_command(2, WORDS, 5))
    engine.finish()
    assert engine.ends(1)[0].fault == fault
    assert engine.tokens(2) == solo(WORDS, 5)


@pytest.mark.parametrize("is_encoded", [False, True])
def test_a_forgotten_request_leaves_no_rows(is_encoded: bool) -> None:
    engine: FakeEngine = engine_of()
    engine.turn(ahead_of(1))
    if is_encoded:
        engine.turn(encoded(1))
    engine.turn(Forget(1))
    assert [job.wanted for job in engine.encodes] == [is_encoded]
    assert repr(engine.ahead) == "<RowsAhead requests=0 begun=0 bytes=0>"


def test_a_request_that_another_engine_prepared_is_encoded_at_its_lease() -> None:
    engine = engine_of()
    engine.turn(run(1))
    assert [job.key for job in engine.encodes] == [1]


def test_rows_of_waiting_requests_are_bounded_and_the_next_begins_when_one_is_leased() -> None:
    ahead = Ahead()
    ahead.add(*(ahead_of(key, 40) for key in range(1, 5)))
    assert ahead.begun == [1, 2]
    ahead.rows.deliver(Encoded(1, [ImageRows(4, [0] * 40)], []))
    assert (ahead.prepared, ahead.begun) == ([1], [1, 2])
    assert ahead.rows.take(1) is not None
    assert ahead.begun == [1, 2, 3]


def test_a_request_larger_than_the_memory_is_encoded_alone() -> None:
    ahead = Ahead()
    ahead.add(ahead_of(1, 5 * LIMIT), ahead_of(2, 1))
    assert ahead.begun == [1]


@pytest.mark.parametrize("other", [{"owner": 1}, {"urgent": False}])
def test_a_user_or_class_without_rows_begins_whatever_others_have(other: Any) -> None:
    ahead = Ahead()
    ahead.add(*(ahead_of(key, 50) for key in (1, 2, 3)), ahead_of(4, 50, **other), ahead_of(5, 50, **other))
    assert ahead.begun == [1, 2, 4]


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 3), st.booleans(), st.integers(0, 2)), max_size=30))
def test_every_request_is_prepared_and_rows_stay_within_the_bound(requests: list[tuple[int, int, bool, int]]) -> None:
    ahead = Ahead()
    sizes = {}
    for key, (size, owner, urgent, taken) in enumerate(requests):
        ahead.add(ahead_of(key, size, owner, urgent=urgent))
        sizes[key] = size
        for _ in range(taken):
            _advance(ahead)
        begun = [sizes[each] for each in ahead.begun if each in sizes]
        firsts = {(owner, urgent) for _, owner, urgent, _ in requests}
        assert sum(begun) <= LIMIT + 150 * len(firsts)
    while len(ahead.prepared) < len(requests):
        _advance(ahead)
    assert sorted(ahead.prepared) == list(range(len(requests)))
    assert repr(ahead.rows) == "<RowsAhead requests=0 begun=0 bytes=0>"


def _advance(ahead: Ahead) -> None:
    """Encode the images of the oldest job, and lease its request."""
    if ahead.jobs:
        job = ahead.jobs.pop(0)
        ahead.rows.deliver(Encoded(job.key, [], []))
        assert ahead.rows.take(job.key) is not None


def test_memory_that_is_free_again_goes_to_the_tenant_with_least_of_it_first() -> None:
    ahead = Ahead()
    ahead.add(*(ahead_of(key, 50, names=("9", "a", f"label {key}")) for key in range(1, 9)))
    ahead.add(ahead_of(11, 50, names=("9", "b", "label")))
    assert ahead.begun == [1, 2]
    ahead.rows.take(1)
    assert ahead.begun == [2, 11]
    ahead.rows.take(2)
    assert ahead.begun == [11, 3]
