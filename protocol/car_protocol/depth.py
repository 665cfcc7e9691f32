"""The bound on how deep free-form members of params may nest."""

from collections.abc import Iterable
from typing import Any

from car_protocol.limits import MAX_DEPTH

Container = dict[str, Any] | list[Any]


def check_depth(name: str, value: object) -> None:
    """Raise ValueError naming the member where arrays and objects nest deeper than MAX_DEPTH."""
    containers = _containers([value])
    for _ in range(MAX_DEPTH):
        containers = [inner for outer in containers for inner in _containers(_members(outer))]
    if containers:
        raise ValueError(f"`{name}`: nests too deeply")


def _containers(values: Iterable[object]) -> list[Container]:
    return [value for value in values if isinstance(value, dict | list)]


def _members(container: Container) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container
