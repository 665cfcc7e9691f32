"""Who has to go so that another model has room."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.models.eviction import Resident, choose

residents = st.lists(
    st.builds(Resident, st.text("abc", min_size=1, max_size=3), st.integers(0, 9), st.floats(0, 9), st.booleans()),
    max_size=5,
    unique_by=lambda each: each.name,
)
sizes = st.integers(0, 30)


def freed(chosen: list[str], those: list[Resident]) -> int:
    return sum(each.bytes for each in those if each.name in chosen)


@given(sizes, sizes, residents)
def test_it_is_enough_and_nobody_goes_who_may_not(needed: int, free: int, those: list[Resident]) -> None:
    chosen = choose(needed, free, those)
    may_go = [each.name for each in those if each.evictable]
    if chosen is None:
        assert free + freed(may_go, those) < needed
    else:
        assert set(chosen) <= set(may_go)
        assert free + freed(chosen, those) >= needed


@given(sizes, sizes, residents)
def test_nobody_goes_without_need(needed: int, free: int, those: list[Resident]) -> None:
    chosen = choose(needed, free, those) or []
    for fewer in combinations(chosen, max(0, len(chosen) - 1)):
        assert not chosen or free + freed(list(fewer), those) < needed


@given(sizes, sizes, residents)
def test_those_who_stay_were_used_later_unless_they_are_too_small_to_help(
    needed: int, free: int, those: list[Resident]
) -> None:
    chosen = choose(needed, free, those)
    last = max((each.used_at for each in those if each.name in (chosen or [])), default=0.0)
    for each in those:
        if chosen and each.evictable and each.name not in chosen and each.used_at < last:
            instead = [name for name in chosen if name != chosen[-1]]
            assert free + freed([*instead, each.name], those) < needed


@given(sizes, sizes, residents)
def test_the_order_in_which_they_are_told_means_nothing(needed: int, free: int, those: list[Resident]) -> None:
    assert choose(needed, free, those) == choose(needed, free, those[::-1])


def test_the_least_recently_used_goes_first() -> None:
    those = [Resident("old", 5, 1.0, True), Resident("older", 5, 0.0, True), Resident("young", 5, 2.0, True)]
    assert choose(5, 0, those) == ["older"]
    assert choose(10, 0, those) == ["older", "old"]


def test_small_ones_stay_where_a_large_one_has_to_go_anyway() -> None:
    assert choose(9, 0, [Resident("small", 1, 0.0, True), Resident("large", 9, 1.0, True)]) == ["large"]


def test_what_fits_drives_nobody_out() -> None:
    assert choose(3, 3, [Resident("idle", 9, 0.0, True)]) == []
