"""Ids of tool calls: never the same twice, unless the request is the same and reproducible."""

from msgspec import structs

from car_engine.runner.generation import call_ids
from tests.engine.fakes import run_command


def ids(prompt: tuple[int, ...] = (5, 6), seed: int = 1, *, reproducible: bool = True) -> list[str]:
    """Return the ids of three calls in one answer."""
    run = run_command(1, list(prompt), reproducible=reproducible)
    source = call_ids(structs.replace(run, options=structs.replace(run.options, seed=seed)))
    return [source() for _ in range(3)]


def test_a_reproducible_request_has_the_same_ids_again() -> None:
    assert ids() == ids()


def test_no_two_calls_have_the_same_id() -> None:
    answers = [ids(), ids(seed=2), ids((5, 7)), ids(reproducible=False), ids(reproducible=False)]
    every = [each for answer in answers for each in answer]
    assert len(set(every)) == len(every)
    assert {len(each) for each in every} == {len("call_") + 24}
