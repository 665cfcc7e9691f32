"""Whom to unload so that another model has room."""

from collections.abc import Sequence

from msgspec import Struct


class Resident(Struct, frozen=True):
    """A model in memory; `used_at` in seconds of any clock, `evictable` where it may go."""

    name: str
    bytes: int
    used_at: float
    evictable: bool


def choose(needed: int, free: int, residents: Sequence[Resident]) -> list[str] | None:
    """Return whom to unload, least recently used first, nobody without need; None where that is not enough."""
    chosen: list[Resident] = []
    for resident in sorted(residents, key=lambda each: (each.used_at, each.name)):
        if free + _sum(chosen) >= needed:
            break
        if resident.evictable:
            chosen.append(resident)
    if free + _sum(chosen) < needed:
        return None
    return [resident.name for resident in _without_the_spared(needed, free, chosen)]


def _without_the_spared(needed: int, free: int, chosen: list[Resident]) -> list[Resident]:
    """Leave out those that need not go because a later one is large, the most recently used first."""
    for resident in reversed(chosen):
        if free + _sum(chosen) - resident.bytes >= needed:
            chosen = [each for each in chosen if each is not resident]
    return chosen


def _sum(residents: Sequence[Resident]) -> int:
    return sum(resident.bytes for resident in residents)
