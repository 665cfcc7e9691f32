"""Facts that are read at most five times a second."""

from car_daemon.recent import Recent


def test_the_same_thing_is_read_once_in_200_ms() -> None:
    now, asked = [0.0], []

    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    recent = Recent(double, lambda: now[0])
    assert [recent(1), recent(1), recent(2), recent(1)] == [2, 2, 4, 2]
    assert asked == [1, 2]
    now[0] = 0.21
    assert [recent(1), recent(2)] == [2, 4]
    assert asked == [1, 2, 1, 2]


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    now = [0.0]
    recent = Recent(lambda number: number, lambda: now[0])
    for number in range(100):
        now[0] += 0.1
        recent(number)
    assert len(recent._kept) <= 3
