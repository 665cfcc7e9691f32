"""The bounds of free-form members of params: their depth, and the range of their numbers."""

from collections.abc import Iterable, Iterator
from typing import Any

from car_protocol.limits import MAX_DEPTH

Container = dict[str, Any] | list[Any]
_LEAST, _MOST = -(2**63), 2**64 - 1


def check_free_form(name: str, value: object) -> None:
    """Raise ValueError naming the member where it nests deeper than MAX_DEPTH or a number overflows a double.

    Integers of more than 64 bits become doubles in place, because frames to an engine cannot carry them.
    """
    for container in _walk(name, value):
        _bound_integers(name, container)


def check_depth(name: str, value: object) -> None:
    """Raise ValueError naming the member where arrays and objects nest deeper than MAX_DEPTH."""
    for _ in _walk(name, value):
        pass


def _walk(name: str, value: object) -> Iterator[Container]:
    containers = _containers([value])
    for _ in range(MAX_DEPTH):
        if not containers:
            return
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
