"""What the commands show of a status: sums, groups, and figures as people read them."""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from car_protocol.capacity import Capacity
from car_protocol.status import ConnectionStatus, EngineStatus, SequenceStatus, Status

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Load(NamedTuple):
    """What one model's sequences do: `other` ones embed, rank or are about to start, parked requests hold none."""

    decode: int
    prefill: int
    other: int
    free: int
    parked: int


class Caller(NamedTuple):
    """The connections that share a label or, without one, a process."""

    name: str
    connections: int
    in_flight: int
    tokens_served: int


def load(capacity: Capacity, sequences: Iterable[SequenceStatus]) -> Load:
    """Return what the model's sequences do."""
    phases = [sequence.phase for sequence in sequences if sequence.model == capacity.model]
    decode, prefill = phases.count("decode"), phases.count("prefill")
    other = max(0, capacity.in_use - decode - prefill)
    return Load(decode, prefill, other, capacity.available, capacity.parked)


def engines(status: Status) -> list[EngineStatus]:
    """Return the engines of all models."""
    return [engine for model in status.models for engine in model.engines]


def callers(connections: Sequence[ConnectionStatus]) -> list[Caller]:
    """Return who else is connected, the busiest first."""
    groups: dict[str, list[ConnectionStatus]] = {}
    for each in connections:
        if each.pid == os.getpid():
            continue
        groups.setdefault(each.client or f"pid {each.pid}", []).append(each)
    found = [
        Caller(name, len(group), sum(each.in_flight for each in group), sum(each.tokens_served for each in group))
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda caller: (-caller.in_flight, -caller.tokens_served, caller.name))


def bytes_text(size: float) -> str:
    """Return a size in the unit that leaves it below 1024."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in _UNITS[:3] else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def rate(per_second: float) -> str:
    """Return a rate with three digits at least."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def duration(seconds: float) -> str:
    """Return a time in one or two units."""
    if 0 < seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
