"""Models whose positions are rows of a table: every length is answered or refused, none ends the engine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.support import Daemon
from tools.random_models.embedding import generate_embedding
from tools.random_models.positions import generate_positions

Start = Callable[..., Daemon]


@pytest.mark.parametrize(
    ("positions", "asked", "declared"), [(100, [], 100), (300, [], 300), (300, ["--context-tokens", "2048"], 300)]
)
def test_all_positions_are_used_and_no_other(
    folder: Path, start: Start, positions: int, asked: list[str], declared: int
) -> None:
    generate_positions(folder / "m.gguf", positions)
    daemon = start("--model", str(folder / "m.gguf"), "--capacity", "2", *asked).ready()
    engine = daemon.engine().pid
    with daemon.connect() as client:
        capacity = client.result("inference/capacity")
        assert (capacity["state"], capacity["context_tokens"]) == ("ready", declared)
        params = {"tokens": [100] * (declared - 20), "ignore_eos": True}
        # Two at once, and the second time the cells of the first.
        for _ in range(2):
            ids = [client.send("infer", {**params, "max_tokens": 20}) for _ in range(2)]
            answers = [client.response(each)["result"] for each in ids]
            assert [answer["usage"]["completion_tokens"] for answer in answers] == [20, 20]
        assert client.result("infer", {**params, "max_tokens": 21})["usage"]["completion_tokens"] == 20
        assert client.reason("infer", {"tokens": [100] * declared}) == "context_exceeded"
    assert daemon.engine().pid == engine


def test_a_model_that_embeds_takes_texts_of_as_many_tokens_as_it_has_positions(folder: Path, start: Start) -> None:
    generate_embedding(folder / "m.gguf", context=128)
    with start("--model", str(folder / "m.gguf")).connect() as client:
        assert len(client.result("embed", {"input": ["a " * 100]})["embeddings"]) == 1
        assert client.reason("embed", {"input": ["a " * 200]}) == "context_exceeded"
        assert len(client.result("embed", {"input": ["a"]})["embeddings"]) == 1
