"""The life of a sequence, and the table of all sequences."""

import pytest

from car_engine.batching.sequences import Phase, Sequence, SequenceTable
from tests.engine.batching.plans import demand_of
from tests.engine.fakes import begin


def decoding(sequence: Sequence) -> Sequence:
    """Bring a started sequence to its first token."""
    sequence.commit(sequence.remaining)
    sequence.accept(1)
    return sequence


def test_a_new_sequence_is_idle_and_empty() -> None:
    sequence = Sequence(3)
    assert (sequence.phase, sequence.cells, sequence.remaining) == (Phase.IDLE, 0, 0)


def test_a_started_sequence_prefills_until_it_has_a_token() -> None:
    sequence = Sequence(0)
    sequence.start([5, 6, 7], order=1)
    assert (sequence.phase, sequence.remaining) == (Phase.PREFILL, 3)
    sequence.commit(2)
    assert (sequence.phase, sequence.remaining) == (Phase.PREFILL, 1)
    sequence.commit(1)
    sequence.accept(9)
    assert (sequence.phase, sequence.cells, sequence.next_token) == (Phase.DECODE, 3, 9)


def test_a_cleared_sequence_can_start_again() -> None:
    sequence = Sequence(0)
    sequence.start([5], order=1)
    decoding(sequence).clear()
    assert (sequence.phase, sequence.cells, sequence.next_token) == (Phase.IDLE, 0, None)
    sequence.start([6], order=2)
    assert sequence.phase is Phase.PREFILL


@pytest.mark.parametrize(("token", "phase"), [(None, Phase.PREFILL), (9, Phase.DECODE)])
def test_a_restored_sequence_goes_on_where_it_was(token: int | None, phase: Phase) -> None:
    sequence = Sequence(0)
    sequence.start([5, 6, 7], order=1)
    sequence.cells, sequence.next_token = 2, token
    assert (sequence.phase, sequence.cells, sequence.next_token) == (phase, 2, token)


def test_a_cleared_sequence_knows_no_token() -> None:
    sequence = Sequence(0)
    sequence.start([5], order=1)
    sequence.known_token = 7
    sequence.clear()
    assert sequence.known_token is None


def test_a_busy_sequence_takes_no_second_request() -> None:
    sequence = Sequence(0)
    sequence.start([5], order=1)
    with pytest.raises(ValueError, match="cannot start"):
        sequence.start([6], order=2)


def test_a_sequence_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="0 prompt tokens"):
        Sequence(0).start([], order=1)


def test_the_lowest_idle_sequence_is_taken_first() -> None:
    table = SequenceTable(3, 64)
    taken = [begin(table, [1]) for _ in range(3)]
    assert [sequence.number for sequence in taken] == [0, 1, 2]
    table.sequences[1].clear()
    table.sequences[0].clear()
    assert begin(table, [1]) is table.sequences[0]


def test_a_full_table_has_no_idle_sequence() -> None:
    table = SequenceTable(1, 64)
    begin(table, [1])
    assert table.idle == []


def test_a_table_is_busy_while_any_sequence_has_work() -> None:
    table = SequenceTable(2, 64)
    assert not table.busy
    sequence = begin(table, [1])
    assert table.busy
    sequence.clear()
    assert not table.busy


def test_decoders_come_by_number_and_prefills_by_arrival() -> None:
    table = SequenceTable(4, 64)
    first, second, third = (begin(table, [1]) for _ in range(3))
    first.clear()
    late = begin(table, [1])
    assert demand_of(table).prefilling == [second, third, late]
    decoding(second)
    assert demand_of(table).decoding == [second]
    decoding(table.sequences[0])
    assert demand_of(table).decoding == [late, second]
    assert demand_of(table).prefilling == [third]


def test_only_a_full_sequence_has_no_room_for_padding() -> None:
    table = SequenceTable(2, 4)
    sequence = begin(table, [1, 2, 3, 4])
    assert table.can_pad(0)
    sequence.commit(3)
    assert table.can_pad(0)
    sequence.commit(1)
    assert not table.can_pad(0)
    assert table.can_pad(1)
