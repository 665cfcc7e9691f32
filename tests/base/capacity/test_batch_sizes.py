"""Batch sizes follow the device, in whole rounds of sequences."""

from hypothesis import given
from hypothesis import strategies as st

from car_base.capacity.curve import BATCH_SIZES


def test_a_gpu_gets_several_graphs_in_a_call_and_a_cpu_one() -> None:
    assert BATCH_SIZES["gpu"].call == 4 * BATCH_SIZES["gpu"].graph
    assert BATCH_SIZES["cpu"].call == BATCH_SIZES["cpu"].graph


@given(st.sampled_from(sorted(BATCH_SIZES)), st.integers(1, 1024))
def test_a_batch_has_whole_rounds_of_all_sequences_and_a_row_of_each(kind: str, sequences: int) -> None:
    whole, sizes = BATCH_SIZES[kind].for_sequences(sequences), BATCH_SIZES[kind]  # type: ignore[index]  # a str of it
    for rows, least in ((whole.call, sizes.call), (whole.graph, sizes.graph)):
        assert rows % sequences == 0
        assert max(1, least - sequences + 1) <= rows <= max(least, sequences)
    assert whole.graph <= whole.call
