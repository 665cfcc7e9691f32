"""Sums of usage in memory: nothing is lost or counted twice, whatever is written when, and all of it is bounded."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.ledger.sums import MOST_APPS, MOST_ROWS, MOST_SERIES, OTHER_APPS, RowKey, Sums
from car_protocol.usage import Amounts

DAY = 739_000
COUNTS = st.tuples(st.just("count"), st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 50))
ATTEMPTS = st.tuples(st.just("write"), st.booleans())
TURNS = st.tuples(st.just("turn"), st.integers(0, 2))


@given(st.lists(COUNTS | ATTEMPTS | TURNS, max_size=60))
def test_what_was_written_and_what_waits_are_what_was_counted(events: list[tuple[object, ...]]) -> None:
    sums, written, counted = Sums(DAY), Counter[RowKey](), Counter[RowKey]()
    tokens = Counter[str]()
    for event in events:
        match event:
            case ("count", str(identity), str(app), int(amount)):
                sums.row(identity, app, "m").computed_tokens += amount
                sums.spend(identity, amount)
                counted[RowKey(sums.day, identity, app, "m")] += amount
                tokens[identity] += amount
            case ("write", bool(works)):
                rows = sums.take()
                if works:
                    written.update({group: each.computed_tokens for group, each in rows.items()})
                else:
                    sums.give_back(rows)
            case ("turn", int(days)):
                if days:
                    tokens.clear()
                sums.turn(sums.day + days)
    written.update({group: each.computed_tokens for group, each in sums.take().items()})
    assert +written == +counted
    assert sums.empty
    assert sum(each.computed_tokens for each in sums.series.values()) == counted.total()
    assert [sums.spent(each) for each in "abc"] == [tokens[each] for each in "abc"]


def test_a_client_with_endless_labels_has_a_bounded_number_of_rows_and_its_tokens_count() -> None:
    sums = Sums(DAY)
    for number in range(3 * MOST_APPS):
        sums.row("1000", f"app {number}", "m").completed += 1
        if number % 50 == 0:
            sums.take()
    sums.row("1001", "another's", "m").completed += 1
    rows = sums.take()
    own = [group for group in rows if group.identity == "1000"]
    assert all(group.app == OTHER_APPS for group in own)
    assert RowKey(DAY, "1001", "another's", "m") in rows
    assert sum(each.completed for each in sums.series.values()) == 3 * MOST_APPS + 1
    assert len(sums.series) <= MOST_APPS + 2
    assert sums.series["another's", ""].completed == 1
    sums.turn(DAY + 1)
    sums.row("1000", "app of another day", "m")
    assert RowKey(DAY + 1, "1000", "app of another day", "m") in sums.take()


def test_metrics_tell_people_apart_until_there_are_very_many_series() -> None:
    sums = Sums(DAY, by_person=True)
    for number in range(MOST_SERIES + 5):
        sums.row(f"@{number % 50}", f"app {number // 50}", "m").completed += 1
    for number in range(3 * MOST_APPS):
        sums.row("@flood", f"app {number}", "m").completed += 1
    sums.take()
    assert sums.series["app 9", "@49"].completed == 1
    assert sums.series[OTHER_APPS, ""].completed == 5 + 3 * MOST_APPS
    assert len(sums.series) == MOST_SERIES + 1


def test_apps_of_one_person_beyond_its_part_are_counted_under_its_name() -> None:
    sums = Sums(DAY, by_person=True)
    for day in range(3):
        sums.turn(DAY + day)
        for number in range(MOST_APPS):
            sums.row("@flood", f"app {day} {number}", "m").completed += 1
    sums.take()
    assert sums.series[OTHER_APPS, "@flood"].completed == 2 * MOST_APPS


def test_rows_that_cannot_be_written_are_bounded_and_those_of_the_oldest_day_go_first() -> None:
    sums = Sums(DAY)
    rows = {RowKey(DAY - number % 2, str(number), "", "m"): Amounts(completed=1) for number in range(MOST_ROWS + 10)}
    sums.give_back(rows)
    kept = sums.take()
    assert len(kept) == MOST_ROWS
    assert Counter(group.day for group in kept)[DAY] == MOST_ROWS // 2 + 5


def test_series_tell_identities_apart_only_if_configured() -> None:
    for by_person, expected in ((False, {("editor", "")}), (True, {("editor", "@anna"), ("editor", "1000")})):
        sums = Sums(DAY, by_person=by_person)
        for identity in ("@anna", "1000"):
            sums.row(identity, "editor", "m").completed += 1
        sums.take()
        assert set(sums.series) == expected
