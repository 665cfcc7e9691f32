"""The level of memory pressure: up at once, down after ten calm seconds."""

import pytest

from car_base.host.memory import PressureGauge, PressureLimits


@pytest.mark.parametrize(
    ("available", "some", "full", "level"),
    [
        (50, 0, 0, "none"),
        (10, 10, 10, "none"),
        (9.9, 0, 0, "some"),
        (50, 10.1, 0, "some"),
        (4.9, 0, 0, "critical"),
        (50, 0, 10.1, "critical"),
        (9, 90, 11, "critical"),
    ],
)
def test_each_reading_has_its_level(available: float, some: float, full: float, level: str) -> None:
    gauge = PressureGauge(PressureLimits())
    changed = gauge.update(available, some, full, now=0)
    assert (changed, str(gauge.level)) == (level != "none", level)


def test_a_level_is_left_only_after_ten_calm_seconds() -> None:
    gauge = PressureGauge(PressureLimits())
    gauge.update(1, 0, 0, now=0)
    assert not gauge.update(50, 0, 0, now=1)
    assert not gauge.update(50, 0, 0, now=10.9)
    assert str(gauge.level) == "critical"
    assert gauge.update(50, 0, 0, now=11)
    assert gauge.level == "none"


def test_one_bad_reading_begins_the_calm_anew() -> None:
    gauge = PressureGauge(PressureLimits())
    gauge.update(8, 0, 0, now=0)
    gauge.update(50, 0, 0, now=1)
    gauge.update(8, 0, 0, now=9)
    assert not gauge.update(50, 0, 0, now=12)
    assert not gauge.update(50, 0, 0, now=21.9)
    assert gauge.update(50, 0, 0, now=22)


def test_a_calmer_level_that_is_not_calm_takes_the_place_of_the_worse_one() -> None:
    gauge = PressureGauge(PressureLimits())
    gauge.update(1, 0, 0, now=0)
    gauge.update(8, 0, 0, now=1)
    assert gauge.update(8, 0, 0, now=11)
    assert gauge.level == "some"
