"""Prompt lookup on the built-in model: faster or not, never another answer."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base import guide
from tests.e2e.support import KNOWN, PATIENCE_S, Json, Known, RawClient, configured, greedy, running

# So short that it is computed in one piece, and with its answers within 256 cells: with other pieces llama.cpp rounds
# otherwise, and with more cells also by the number of threads.
REPEATED = "one two three four five six. one two three four five six. one"


@pytest.fixture(scope="module")
def guessing() -> Iterator[RawClient]:
    """A client of a daemon whose default model guesses; the model `plain` does not."""
    guesses = {"fast": "true", "plain": "false"}
    models = [
        f'[models.{name}]\npath = "{guide.PATH}"\nspeculative = {each}\nsequences = 4\n'
        for name, each in guesses.items()
    ]
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        options = configured(Path(name), 'default_model = "fast"\n' + "".join(models))
        with running(Path(name), *options) as daemon, daemon.connect() as client:
            yield client


@pytest.mark.parametrize("known", KNOWN[::6], ids=lambda known: known.question[:20])
def test_a_known_question_has_its_one_answer(guessing: RawClient, known: Known) -> None:
    assert guessing.result("infer", greedy(known))["text"] == known.answer


@pytest.mark.parametrize("temperature", [0, 0.3])
def test_a_text_is_the_same_with_and_without_guesses(guessing: RawClient, temperature: float) -> None:
    params: Json = {"prompt": REPEATED, "temperature": temperature, "seed": 5, "max_tokens": 200, "ignore_eos": True}
    tokens = {
        model: guessing.result("infer", {**params, "model": model, "return_tokens": True})["tokens"]
        for model in ("fast", "plain")
    }
    assert tokens["fast"] == tokens["plain"]
    assert len(tokens["fast"]) == 200


def test_tokens_of_earlier_text_are_tried_by_the_model_that_guesses_alone(guessing: RawClient) -> None:
    repeating: Json = {"prompt": REPEATED, "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    deadline = time.monotonic() + PATIENCE_S
    tried = {"fast": 0, "plain": 0}
    while not tried["fast"]:
        assert time.monotonic() < deadline, "heartbeats bring the counters"
        for model in tried:
            guessing.result("infer", {**repeating, "model": model})
        models = guessing.result("daemon/status")["models"]
        tried = {model["name"]: engine["lookup_tried"] for model in models for engine in model["engines"]}
    assert tried["plain"] == 0


def test_requests_at_once_are_answered_as_ever(guessing: RawClient) -> None:
    requests = [(known, guessing.send("infer", greedy(known))) for known in KNOWN[:8]]
    assert all(guessing.response(request)["result"]["text"] == known.answer for known, request in requests)
