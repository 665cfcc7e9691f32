"""Where the reading of a prompt stops, so that others go on from there."""

from itertools import pairwise
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.model_sizes import SequenceBytes
from car_engine.batching.costs import StepCosts
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stops import stops

SLOW = StepCosts(prefill={1: 0.1, 512: 51.2})  # a token takes so long that every state pays


def moves(state_tokens: float) -> MoveCosts:
    return MoveCosts(SLOW, 65_536, 1000, lambda: 0.0, 1000 * min(state_tokens, 1000), state_tokens)


@given(st.integers(1, 4000), st.integers(0, 2000))
def test_an_edit_is_read_again_from_at_most_256_tokens_or_the_memory_of_a_state(length: int, state: int) -> None:
    places = [0, *stops(Prefix(np.arange(length, dtype=np.int32), "a"), 0, (), 1, moves(state)), length]
    gaps = [after - before for before, after in pairwise(places)]
    # Places that are closer than is worth a state are one place.
    assert max(gaps) <= max(256, state) + 16


def test_a_window_counts_as_its_tokens_in_all_layers() -> None:
    # 5 of 6 layers have a window of 512 tokens.
    assert SequenceBytes(per_token=100, windowed=500, window=512).state_tokens == 5 / 6 * 512
    assert SequenceBytes(per_token=0, states=1000).state_tokens == inf
