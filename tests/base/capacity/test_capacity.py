"""Capacity, declared once: by an explicit figure, by the cost curve, by RAM or by free memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.capacity.capacity import CapacityInputs, Declared, declare, estimate_capacity, longest_context
from car_base.capacity.curve import Curve
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.ranges import MAX_SEQUENCES
from car_protocol.capacity import Offer, Policy

GB = 1000**3
CURVE = Curve({1: 0.010, 8: 0.024, 4: 0.022, 16: 0.048}, {})
NOTHING = Curve({}, {})


def need(**given: Any) -> CapacityInputs:
    """Return a need with plenty of memory by default."""
    facts: dict[str, Any] = {
        "sequence_bytes": SequenceBytes(1000),
        "free_bytes": 10 * GB,
        "total_bytes": 32 * GB,
        "trained_context": 4096,
        "policy": "memory",
        "curve": NOTHING,
        "max_itl": 0.150,
    }
    return CapacityInputs(**{**facts, **given})


def holding(number: int) -> int:
    """Return the bytes of so many sequences of 4,096 tokens with the attention mask of a batch."""
    return 4096 * (number * 1000 + 512 * 2)


def sequences(**given: Any) -> int:
    return declare(need(**given)).sequences


def test_the_fitting_sequences_are_reported_for_one_engine_and_for_an_explicit_figure() -> None:
    found = estimate_capacity(need(free_bytes=200_000_000))
    assert (found.context_tokens, found.sequences, found.most_sequences) == (4096, 11, 42)


def test_longer_and_more_sequences_are_offered_a_factor_of_four_apart() -> None:
    assert estimate_capacity(need(trained_context=131_072, free_bytes=GB * 2)).offers == (
        Offer(2, 131_072),
        Offer(14, 32_768),
        Offer(60, 8192),
        Offer(243, 2048),
    )
    lean = estimate_capacity(need(trained_context=131_072, free_bytes=GB // 2))
    assert lean.offers == (Offer(2, 32_768), Offer(14, 8192), Offer(60, 2048))
    assert estimate_capacity(need(trained_context=1000)).offers == (Offer(256, 1024),)
    assert estimate_capacity(need(trained_context=3000, most_tokens=3000, most_sequences=1)).offers == (Offer(1, 3000),)
    assert estimate_capacity(need(trained_context=16_384, most_sequences=4)).offers == (Offer(4, 16_384),)
    assert estimate_capacity(need(free_bytes=0)).offers == ()


# The context.


@pytest.mark.parametrize(
    ("trained", "expected"), [(4096, 4096), (100, 256), (1000, 1024), (131_072, 131_072), (1 << 20, 826_624)]
)
def test_the_context_is_the_trained_one_as_far_as_two_sequences_fit_a_quarter_of_the_memory(
    trained: int, expected: int
) -> None:
    assert declare(need(trained_context=trained)).context_tokens == expected


@pytest.mark.parametrize(("requested", "expected"), [(1, 256), (256, 256), (1000, 1024), (32768, 32768)])
def test_an_explicit_context_is_rounded_up_to_whole_cells(requested: int, expected: int) -> None:
    assert declare(need(context_tokens=requested)).context_tokens == expected


@pytest.mark.parametrize(("free", "expected"), [(36_000_000, 2816), (17_000_000, 2048), (1, 2048)])
def test_without_memory_for_two_sequences_the_context_shrinks_to_2048(free: int, expected: int) -> None:
    assert declare(need(free_bytes=free)).context_tokens == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(1, 1_234_944), (2, 826_624), (3, 826_624), (8, 553_984), (64, 76_800)]
)
def test_a_given_number_of_sequences_shares_half_of_the_memory_in_shorter_ones(number: int, expected: int) -> None:
    declared = declare(need(sequences=number, policy="config", trained_context=1 << 21))
    assert declared == Declared(number, expected, "config")


@given(st.integers(1, 10**8), st.integers(1, 10**5))
def test_a_context_that_was_lowered_leaves_room_for_two_sequences(free: int, kv: int) -> None:
    declared = declare(need(free_bytes=free, sequence_bytes=SequenceBytes(kv)))
    if 2048 < declared.context_tokens < 4096:
        assert declared.sequences >= 2


# Explicit figures.


@pytest.mark.parametrize(
    ("requested", "declared", "noted"), [(1, 1, None), (12, 12, None), (256, 256, None), (300, 256, 300), (0, 1, None)]
)
def test_an_explicit_figure_counts_up_to_llama_cpps_bound(requested: int, declared: int, noted: int | None) -> None:
    answer = declare(need(sequences=requested, policy="env"))
    assert (answer.sequences, answer.policy, answer.requested) == (declared, "env", noted)


def test_an_explicit_figure_is_lowered_to_what_memory_holds() -> None:
    answer = declare(need(sequences=8, policy="flag", free_bytes=20_000_000, context_tokens=4096))
    assert answer == Declared(3, 4096, "flag", requested=8)


def test_one_sequence_is_declared_whatever_memory_says() -> None:
    assert declare(need(sequences=8, policy="config", free_bytes=0)) == Declared(1, 2048, "config", requested=8)
    assert declare(need(free_bytes=0)) == Declared(1, 2048, "memory")


# Policies.


@pytest.mark.parametrize(("free", "expected"), [(10 * GB, 8), (4 * holding(3), 3), (4 * holding(1) - 1, 1)])
def test_by_memory_the_kv_cache_takes_a_quarter_and_eight_are_enough(free: int, expected: int) -> None:
    declared = declare(need(free_bytes=free, context_tokens=4096))
    assert (declared.sequences, declared.policy) == (expected, "memory")


def test_by_the_curve_the_fewest_sequences_of_nearly_the_best_throughput_are_declared() -> None:
    assert declare(need(policy="measured", curve=CURVE)) == Declared(8, 4096, "measured")


def test_a_step_that_takes_longer_than_allowed_is_not_declared() -> None:
    assert sequences(policy="measured", curve=CURVE, max_itl=0.023) == 4
    assert sequences(policy="measured", curve=CURVE, max_itl=0.001) == 1


def test_what_memory_does_not_hold_is_not_declared_by_the_curve() -> None:
    assert sequences(policy="measured", curve=CURVE, free_bytes=4 * holding(5), context_tokens=4096) == 4


def test_what_was_not_measured_is_not_declared() -> None:
    assert sequences(policy="measured", curve=Curve({1: 0.010, 3: 0.012}, {})) == 3


@pytest.mark.parametrize("curve", [NOTHING, Curve({1: 0.010}, {})])
def test_with_too_little_measured_memory_decides(curve: Curve) -> None:
    assert declare(need(policy="measured", curve=curve)) == Declared(8, 4096, "memory")


@pytest.mark.parametrize(("total", "expected"), [(64, 3), (48, 3), (47, 2), (16, 2), (15, 1), (1, 1)])
def test_by_tiers_of_ram(total: int, expected: int) -> None:
    assert declare(need(policy="ram_tiers", total_bytes=total * GB)) == Declared(expected, 4096, "ram_tiers")


@pytest.mark.parametrize(("mebibytes", "expected"), [(4096, 1), (8192, 1), (16384, 2), (24575, 2), (10**6, 8)])
def test_one_sequence_for_each_8_gb(mebibytes: int, expected: int) -> None:
    assert sequences(policy="ram_per_8gb", total_bytes=mebibytes * 1024**2) == expected


POLICIES = st.sampled_from(["measured", "memory", "ram_tiers", "ram_per_8gb"])
FIGURES = st.none() | st.integers(0, 400)


@given(POLICIES, FIGURES, st.integers(0, 10**10), st.integers(1, 10**6), st.integers(1, 10**5))
def test_whatever_decides_between_one_and_256_sequences_of_whole_cells_are_declared(
    policy: Policy, requested: int | None, free: int, kv: int, trained: int
) -> None:
    declared = declare(
        need(
            policy=policy,
            sequences=requested,
            free_bytes=free,
            sequence_bytes=SequenceBytes(kv),
            trained_context=trained,
            curve=CURVE,
        )
    )
    assert 1 <= declared.sequences <= MAX_SEQUENCES
    assert declared.context_tokens % 256 == 0
    assert declared.context_tokens >= 256
    assert declared.requested is None or declared.sequences < declared.requested


# Models with states, with a table of positions, and models that run one sequence.


def test_states_count_for_every_sequence_however_short() -> None:
    states = SequenceBytes(0, 100_000_000)
    found = estimate_capacity(need(sequence_bytes=states, free_bytes=2_000_000_000))
    assert (found.context_tokens, found.sequences, found.most_sequences) == (4096, 5, 18)
    assert sequences(sequence_bytes=states, free_bytes=2_000_000_000, sequences=40) == 18


def test_what_states_leave_decides_the_context() -> None:
    both = SequenceBytes(1000, 10_000_000)
    assert declare(need(sequence_bytes=both, free_bytes=120_000_000, trained_context=10**6)).context_tokens == 3072
    requested = declare(need(sequence_bytes=both, free_bytes=100_000_000, context_tokens=10**6))
    assert (requested.sequences, requested.context_tokens) == (1, 39_424)


@pytest.mark.parametrize(("requested", "declared"), [(None, 300), (250, 256), (300, 300), (2048, 300)])
def test_no_sequence_is_longer_than_the_table_of_positions(requested: int | None, declared: int) -> None:
    assert declare(need(trained_context=300, context_tokens=requested, most_tokens=300)).context_tokens == declared


def test_a_model_that_runs_one_sequence_declares_one() -> None:
    assert declare(need(sequences=4, policy="config", most_sequences=1)) == Declared(1, 4096, "config", 4)
    assert sequences(policy="measured", curve=CURVE, most_sequences=1) == 1


@given(
    free=st.integers(0, 10 * GB),
    trained=st.integers(1, 200_000),
    sequences=st.none() | st.integers(1, 64),
    context=st.none() | st.integers(1, 200_000),
)
def test_the_longest_context_is_declared_if_it_is_given_for_one_sequence(
    free: int, trained: int, sequences: int | None, context: int | None
) -> None:
    inputs = need(free_bytes=free, trained_context=trained, sequences=sequences, context_tokens=context)
    longest = longest_context(inputs)
    alone = declare(need(free_bytes=free, trained_context=trained, sequences=1, context_tokens=longest))
    assert (alone.sequences, alone.context_tokens) == (1, longest)
    longer = declare(need(free_bytes=free, trained_context=trained, sequences=1, context_tokens=longest + 256))
    assert longer.context_tokens == longest or longest >= trained
