"""Poisson arrivals."""

from collections.abc import Iterator
from random import Random


def poisson(rate: float, chance: Random) -> Iterator[float]:
    """Yield arrival times in seconds from the start, `rate` a second on average and independent of each other."""
    moment = 0.0
    while True:
        moment += chance.expovariate(rate)
        yield moment
