"""The bounds of free-form members of params: their depth, their number of values, and the range of their numbers."""

from collections.abc import Iterable, Iterator
from typing import Any

from car_protocol.limits import MAX_DEPTH, MAX_VALUES

Container = dict[str, Any] | list[Any]
_LEAST, _MOST = -(2**63), 2**64 - 1


def check_free_form(name: str, *values: object) -> None:
    """Raise ValueError naming the member where its values are out of bounds, or a number overflows a double.

    Integers of more than 64 bits become doubles in place, because frames to an engine cannot carry them.
    """
    for container in _walk(name, values):
        _bound_integers(name, container)


def check_depth(name: str, value: object) -> None:
    """Raise ValueError naming the member where arrays and objects nest too deeply or have too many values."""
    for _ in _walk(name, [value]):
        pass


def _walk(name: str, values: Iterable[object]) -> Iterator[Container]:
    containers, count = _containers(values), 0
    for _ in range(MAX_DEPTH):
        if not containers:
            return
        count += sum(map(len, containers))
        if count > MAX_VALUES:
            # Before they are looked at: a frame has room for millions, which would take seconds.
            raise ValueError(f"`{name}`: has at least {count:,} values, at most {MAX_VALUES:,} are allowed")
        yield from containers
        containers = [inner for outer in containers for inner in _containers(_members(outer))]
    if containers:
        raise ValueError(f"`{name}`: nests deeper than {MAX_DEPTH} levels")


def _containers(values: Iterable[object]) -> list[Container]:
    return [value for value in values if isinstance(value, dict | list)]


def _members(container: Container) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container


def _bound_integers(name: str, container: Container) -> None:
    places: Iterable[tuple[Any, object]] = container.items() if isinstance(container, dict) else enumerate(container)
    for place, value in places:
        if type(value) is int and not _LEAST <= value <= _MOST:
            container[place] = _as_double(name, value)


def _as_double(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"`{name}`: a number is too large") from error
