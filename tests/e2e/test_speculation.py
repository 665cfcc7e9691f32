"""Prompt lookup on the built-in model: faster or not, never another answer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base import guide
from tests.e2e.support import KNOWN, Known, RawClient, configured, greedy, running

REPEATED = "one two three four five six seven eight nine ten. " * 6


@pytest.fixture(scope="module")
def guessing() -> Iterator[RawClient]:
    """A client of a daemon that guesses."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        config = f'default_model = "fast"\n[models.fast]\npath = "{guide.PATH}"\nspeculative = true\nsequences = 4\n'
        with running(Path(name), *configured(Path(name), config)) as daemon, daemon.connect() as client:
            yield client


@pytest.mark.parametrize("known", KNOWN[::6], ids=lambda known: known.question[:20])
def test_a_known_question_has_its_one_answer(guessing: RawClient, known: Known) -> None:
    assert guessing.result("infer", greedy(known))["text"] == known.answer


def test_greedy_text_is_the_same_with_and_without_guesses(guessing: RawClient, client: RawClient) -> None:
    params = {"prompt": REPEATED, "temperature": 0, "max_tokens": 200, "ignore_eos": True, "return_tokens": True}
    first, second = guessing.result("infer", params), client.result("infer", params)
    assert first["tokens"] == second["tokens"]
    assert first["usage"]["completion_tokens"] == 200


def test_a_seed_gives_the_same_text_with_and_without_guesses(guessing: RawClient, client: RawClient) -> None:
    params = {"prompt": REPEATED, "temperature": 0.3, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    assert guessing.result("infer", params)["text"] == client.result("infer", params)["text"]


def test_requests_at_once_are_answered_as_ever(guessing: RawClient) -> None:
    requests = [(known, guessing.send("infer", greedy(known))) for known in KNOWN[:8]]
    assert all(guessing.response(request)["result"]["text"] == known.answer for known, request in requests)
