"""When requests arrive that do not wait for each other."""

from collections.abc import Iterator
from random import Random


def poisson(rate: float, chance: Random) -> Iterator[float]:
    """Yield the seconds from the begin at which they arrive: `rate` a second on average, none knowing of another."""
    moment = 0.0
    while True:
        moment += chance.expovariate(rate)
        yield moment
