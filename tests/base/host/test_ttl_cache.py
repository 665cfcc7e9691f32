"""Readings that are cached for 200 ms."""

from car_base.host.timers import TtlCache


def test_the_same_reading_is_taken_once_in_200_ms() -> None:
    now, read = [0.0], []

    def double(number: int) -> int:
        read.append(number)
        return 2 * number

    cache = TtlCache(double, lambda: now[0])
    assert [cache(1), cache(1), cache(2), cache(1)] == [2, 2, 4, 2]
    assert read == [1, 2]
    now[0] = 0.21
    assert [cache(1), cache(2)] == [2, 4]
    assert read == [1, 2, 1, 2]


def test_readings_that_are_no_longer_requested_are_dropped() -> None:
    now = [0.0]
    cache = TtlCache(lambda number: number, lambda: now[0])
    for number in range(100):
        now[0] += 0.1
        cache(number)
    assert len(cache._kept) <= 3
