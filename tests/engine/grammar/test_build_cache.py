"""Prototypes: built once, the ones used last are kept."""

import pytest

from car_engine.grammar.constraint import BuildCache


class Builder:
    """Builds words, and remembers which."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def __call__(self, key: str) -> list[str]:
        """Return a new list, so that two builds can be told apart."""
        self.built.append(key)
        if key == "bad":
            raise ValueError(key)
        return [key]


def test_a_prototype_is_built_once() -> None:
    build = Builder()
    prototypes = BuildCache(build, 2)
    assert prototypes.get("one") is prototypes.get("one")
    assert build.built == ["one"]


def test_prototypes_of_different_keys_are_different() -> None:
    prototypes = BuildCache(Builder(), 2)
    assert (prototypes.get("one"), prototypes.get("two")) == (["one"], ["two"])


def test_the_one_whose_use_is_longest_ago_makes_room() -> None:
    build = Builder()
    prototypes = BuildCache(build, 2)
    for key in ("one", "two", "one", "three"):
        prototypes.get(key)
    assert build.built == ["one", "two", "three"]
    prototypes.get("one")
    assert build.built == ["one", "two", "three"], "using it kept it"
    prototypes.get("two")
    assert build.built == ["one", "two", "three", "two"]


def test_what_building_raises_passes_through_and_is_not_kept() -> None:
    build = Builder()
    prototypes = BuildCache(build, 2)
    prototypes.get("one")
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            prototypes.get("bad")
    assert build.built == ["one", "bad", "bad"]
    prototypes.get("one")
    assert build.built == ["one", "bad", "bad"], "a failure drives nothing out"


def test_no_lock_is_held_while_one_is_built() -> None:
    built: list[int] = []

    def build(key: int) -> int:
        built.append(key)
        return key if key == 0 else prototypes.get(key - 1)

    prototypes = BuildCache(build, 10)
    assert prototypes.get(3) == 0
    assert built == [3, 2, 1, 0]


def test_one_that_was_forgotten_is_built_again() -> None:
    build = Builder()
    prototypes = BuildCache(build, 2)
    first = prototypes.get("one")
    prototypes.forget("one")
    prototypes.forget("unknown")
    assert prototypes.get("one") is not first
    assert build.built == ["one", "one"]
