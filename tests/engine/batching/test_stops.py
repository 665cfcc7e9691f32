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
from tests.pace import calls

SLOW = StepCosts(prefill={1: 0.1, 512: 51.2})  # a token takes so long that every state pays


def moves(state_tokens: float) -> MoveCosts:
    return MoveCosts(SLOW, 65_536, 1000, lambda: 0.0, 1000 * min(state_tokens, 1000), state_tokens)


def prompt(length: int) -> Prefix:
    return Prefix(np.arange(length, dtype=np.int32), "a")


@given(st.integers(1, 4000), st.integers(0, 2000))
def test_an_edit_is_read_again_from_at_most_256_tokens_or_the_memory_of_a_state(length: int, state: int) -> None:
    places = [0, *stops(prompt(length), 0, (), (1,), moves(state)), length]
    gaps = [after - before for before, after in pairwise(places)]
    # Places that are closer than is worth a state are one place.
    assert max(gaps) <= max(256, state) + 16


def test_the_stops_of_a_long_prompt_cost_no_square_of_their_number() -> None:
    def cost(length: int) -> int:
        return calls(lambda: stops(prompt(length), 0, (), (1,), moves(0)))

    assert cost(65_536) <= 5 * cost(16_384)


def test_the_beginning_that_other_chats_have_is_a_stop_whatever_is_known_of_them() -> None:
    assert stops(prompt(435), 0, (), (5, 35), moves(inf)) == [400, 430]


def test_of_places_that_are_nearly_one_the_first_is_the_stop_because_it_serves_all() -> None:
    assert stops(prompt(600), 0, {399, 400, 407, 420}, (5,), moves(inf)) == [399, 420, 595]
    assert stops(prompt(600), 0, {400, 407, 420}, (5, 201), moves(inf)) == [399, 420, 595]
    assert stops(prompt(600), 0, {590}, (5,), moves(inf)) == [590]


def test_the_states_of_a_prompt_take_a_hundredth_of_the_time_to_read_it_and_those_of_most_worth_are_kept() -> None:
    costs = moves(inf)
    costs.checkpoint = 0.01 * costs.compute(0, 1000) / 2
    assert stops(prompt(1000), 0, {100, 300, 500}, (5,), costs) == [500, 995]
    assert stops(prompt(1000), 0, {100}, (5, 400), costs) == [600, 995]


@given(st.integers(64, 1000), st.floats(0.0, 0.1))
def test_the_next_turn_and_the_next_chat_go_on_from_states_while_copying_both_takes_little(
    length: int, part: float
) -> None:
    costs = moves(inf)
    costs.checkpoint = part * costs.compute(0, length)
    begins = [length - 20] if part <= 0.03 else []
    goes_on = [length - 1] if part <= 0.015 else []
    assert [each for each in stops(prompt(length), 0, {20}, (1, 20), costs) if each != 20] == begins + goes_on


def test_a_window_counts_as_its_tokens_in_all_layers() -> None:
    # 5 of 6 layers have a window of 512 tokens.
    assert SequenceBytes(per_token=100, windowed=500, window=512).state_tokens == 5 / 6 * 512
    assert SequenceBytes(per_token=0, states=1000).state_tokens == inf
