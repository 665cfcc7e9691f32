"""A long prompt that joins decoders: how long these wait, and its first token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.machines import GPU, STEEP, TWO_CORES
from benchmarks.simulation import Machine
from tests.engine.batching.joining import Joined, joined

DECODERS = 7
TARGETS = (0.030, 0.120, 0.300)
MACHINES = {"a GPU's launches": GPU, "two cores": TWO_CORES, "a steep curve": STEEP}


def excess(found: Joined, target: float) -> float:
    """Return the seconds by which a gap exceeds the target and one smallest chunk, the most of all gaps."""
    return max(gap - target - least for gap, least in found.gaps)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_decoders_beside_a_long_prompt_wait_at_most_for_the_target_and_one_smallest_chunk(
    machine: Machine, target: float
) -> None:
    assert excess(joined(machine, (2000,), decoders=DECODERS, target=target), target) <= 0.1 * target


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_long_prompt_beside_decoders_has_its_first_token_after_at_most_2_5_times_as_long_as_alone(
    machine: Machine,
) -> None:
    alone = joined(machine, (2000,), decoders=0, target=0.120).first
    assert joined(machine, (2000,), decoders=DECODERS, target=0.120).first <= 2.5 * alone


@settings(max_examples=20)
@given(
    st.floats(0.001, 0.010),
    st.floats(1.0, 6.0),
    st.floats(0.0, 0.5),
    st.floats(0.3, 1.0),
    st.sampled_from(TARGETS),
    st.integers(1, 7),
)
def test_on_every_machine_decoders_wait_at_most_for_the_target_and_one_smallest_chunk(
    row: float, eight: float, deep: float, tiles: float, target: float, decoders: int
) -> None:
    # A further row, and what a token takes for each cell before it: `deep` of that after 256 cells.
    many = row * eight / 8
    cell = deep * many / 256
    machine = Machine(
        decode={1: row, 8: row * eight},
        prefill={1: row, 8: row * eight, 16: row * eight + 8 * many, 512: row * eight + 504 * many},
        per_cell={16: cell, 48: cell, 64: cell * tiles, 512: cell * tiles},
    )
    found = joined(machine, (2000,), decoders=decoders, target=target)
    decode = machine.decode_seconds(decoders)
    # A decode that exceeds the target leaves prompts as long as it takes itself.
    assert excess(found, target if decode <= target else 2 * decode) <= 0.1 * target


def test_prompts_that_join_one_after_the_other_get_more_time_than_a_lone_one() -> None:
    lone = joined(TWO_CORES, (400,), decoders=6, target=0.120)
    three = joined(TWO_CORES, (400, 400, 400), decoders=4, target=0.120)
    assert three.first < 2.5 * lone.first
    assert 0.120 < max(gap for gap, _ in three.gaps) <= 3.5 * 0.120
