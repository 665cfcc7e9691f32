"""Draft models: another entry's file guesses, and never changes an answer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from car_daemon import guide
from tests.e2e.support import KNOWN, Known, RawClient, configured, greedy, running
from tools.random_model import generate
from tools.random_models.recurrent import generate_recurrent

REPEATED = "one two three four five six seven eight nine ten. "
MODELS = f"""default_model = "drafted"
[models.drafted]
path = "{guide.PATH}"
draft = "small"
sequences = 4
[models.small]
path = "{guide.PATH}"
[models.large]
path = "FOLDER/large.gguf"
sequences = 2
context_tokens = 512
[models.hopeless]
path = "FOLDER/large.gguf"
draft = "other"
sequences = 2
context_tokens = 512
[models.other]
path = "FOLDER/other.gguf"
[models.foreign]
path = "{guide.PATH}"
draft = "other"
[models.recurrent]
path = "FOLDER/recurrent.gguf"
[models.fixed]
path = "FOLDER/large.gguf"
draft = "recurrent"
"""


@pytest.fixture(scope="module")
def drafting() -> Iterator[RawClient]:
    """A client of a daemon whose models have draft models."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "large.gguf", "tiny", "f16")
        generate(folder / "other.gguf", "tiny", "f16", seed=2)
        generate_recurrent(folder / "recurrent.gguf")
        with running(folder, *configured(folder, MODELS.replace("FOLDER", name))) as daemon, daemon.connect() as client:
            yield client


def engine_of(client: RawClient, model: str) -> dict[str, Any]:
    (found,) = (each for each in client.result("daemon/status", {})["models"] if each["name"] == model)
    (engine,) = found["engines"]
    return dict(engine)


@pytest.mark.parametrize("known", KNOWN[::6], ids=lambda known: known.question[:20])
def test_a_known_question_has_its_one_answer(drafting: RawClient, known: Known) -> None:
    assert drafting.result("infer", greedy(known))["text"] == known.answer


def test_a_seed_gives_the_same_text_with_and_without_a_draft(drafting: RawClient, client: RawClient) -> None:
    params = {"prompt": REPEATED, "temperature": 0.7, "seed": 5, "max_tokens": 80, "ignore_eos": True}
    # A prompt that goes on from the cells of another test is computed in other pieces, and rounds differently.
    params["cache_prompt"] = False
    assert drafting.result("infer", params)["text"] == client.result("infer", params)["text"]


def test_requests_at_once_are_answered_as_ever(drafting: RawClient) -> None:
    requests = [(known, drafting.send("infer", greedy(known))) for known in KNOWN[:8]]
    assert all(drafting.response(request)["result"]["text"] == known.answer for known, request in requests)


def test_a_draft_that_guesses_wrong_changes_nothing_and_is_given_up(drafting: RawClient) -> None:
    params = {"prompt": "a b", "temperature": 0, "max_tokens": 200, "ignore_eos": True, "return_tokens": True}
    with_it, without = (drafting.result("infer", {**params, "model": model}) for model in ("hopeless", "large"))
    assert with_it["tokens"] == without["tokens"]
    assert engine_of(drafting, "hopeless")["draft_tried"] < 60


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("foreign", "the draft model other cannot guess for this model: it has"),
        ("fixed", "the draft model recurrent cannot "),
    ],
)
def test_a_draft_that_cannot_guess_is_refused_by_name(drafting: RawClient, model: str, why: str) -> None:
    error = drafting.call("infer", {"model": model, "prompt": "a"})["error"]
    assert why in error["data"]["why"]


def test_the_page_of_a_model_names_its_draft_and_counts_its_memory(drafting: RawClient) -> None:
    drafted, alone = (drafting.result("models/show", {"model": model}) for model in ("drafted", "small"))
    assert (drafted["draft"], "draft" in alone) == ("small", False)
    assert drafted["estimate"]["weights_bytes"] == 2 * alone["estimate"]["weights_bytes"]
    each_token = [
        shown["estimate"]["kv_bytes_per_sequence"] / shown["estimate"]["context_tokens"] for shown in (drafted, alone)
    ]
    assert each_token[0] == 2 * each_token[1]
