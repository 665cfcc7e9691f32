"""Which rows share a decode call: the cheapest cut of ascending numbers into runs, holes filled with padding."""

from collections.abc import Callable, Sequence
from functools import cache


def packed(numbers: Sequence[int], cost: Callable[[int], float]) -> list[range]:
    """Return runs that cover the numbers and together cost least; `cost` is that of so many consecutive rows."""

    @cache
    def best(start: int) -> tuple[float, list[range]]:
        if start == len(numbers):
            return 0.0, []
        ways = []
        for end in range(start, len(numbers)):
            run = range(numbers[start], numbers[end] + 1)
            seconds, rest = best(end + 1)
            ways.append((cost(len(run)) + seconds, [run, *rest]))
        return min(ways, key=lambda way: way[0])

    return best(0)[1]
