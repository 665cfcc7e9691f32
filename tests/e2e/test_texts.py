"""`embed` and `rerank` through the socket: on the model that generates, and on models made for it."""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import CANARY, KNOWN, Daemon, RawClient, endless, greedy, running
from tools.random_models.embedding import generate_embedding

TEXTS = ["the first text", "another one", "the first text"]


@contextmanager
def serving(pooling: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        path = Path(name) / "texts.gguf"
        generate_embedding(path, pooling=pooling)
        with running(Path(name), "--model", str(path)) as daemon:
            yield daemon


@pytest.fixture(scope="module")
def embedding() -> Iterator[RawClient]:
    """A client of a daemon whose model only embeds."""
    with serving("mean") as daemon, daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def ranking() -> Iterator[RawClient]:
    """A client of a daemon whose model only ranks."""
    with serving("rank") as daemon, daemon.connect() as client:
        yield client


def cosine(first: list[float], second: list[float]) -> float:
    return sum(one * other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("model", ["generating", "embedding"])
def test_every_text_has_a_vector_of_length_1(model: str, request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue("client" if model == "generating" else "embedding")
    result = client.result("embed", {"input": TEXTS})
    vectors = result["embeddings"]
    assert [math.isclose(cosine(vector, vector), 1, abs_tol=1e-6) for vector in vectors] == [True] * 3
    assert math.isclose(cosine(vectors[0], vectors[2]), 1, abs_tol=1e-4)
    assert cosine(vectors[0], vectors[1]) < 0.9999
    assert result["usage"]["prompt_tokens"] > 3


def test_vectors_come_as_they_are_where_that_is_asked_for(embedding: RawClient) -> None:
    raw = embedding.result("embed", {"input": TEXTS[:1], "normalize": False})["embeddings"][0]
    unit = embedding.result("embed", {"input": TEXTS[:1]})["embeddings"][0]
    length = math.sqrt(cosine(raw, raw))
    assert abs(length - 1) > 0.01
    assert all(math.isclose(a / length, b, abs_tol=1e-5) for a, b in zip(raw, unit, strict=True))


def test_256_texts_are_answered_in_their_order(client: RawClient) -> None:
    texts = [f"text number {number % 7}" for number in range(256)]
    vectors = client.result("embed", {"input": texts})["embeddings"]
    alone = client.result("embed", {"input": texts[:7]})["embeddings"]
    assert all(cosine(vector, alone[number % 7]) > 0.999 for number, vector in enumerate(vectors))


def test_texts_are_embedded_while_others_generate_and_disturb_no_answer(client: RawClient) -> None:
    streams = [client.send("infer", greedy(known)) for known in KNOWN[:6]]
    embedded = client.result("embed", {"input": [f"text {number}" for number in range(64)]})
    assert len(embedded["embeddings"]) == 64
    assert [client.response(stream)["result"]["text"] for stream in streams] == [k.answer for k in KNOWN[:6]]


def test_texts_take_a_lease_like_any_other_request(small: RawClient) -> None:
    held = [small.send("infer_stream", endless()) for _ in range(2)]
    for request in held:
        small.first_chunk(request)
    waiting = small.send("embed", {"input": ["x"]})
    assert small.result("inference/capacity")["queued"] == 1
    small.send("$/cancelRequest", {"id": held[0]})
    assert "result" in small.response(waiting)
    small.send("$/cancelRequest", {"id": held[1]})


def test_an_embedding_that_waits_can_be_cancelled(small: RawClient) -> None:
    held = [small.send("infer_stream", endless()) for _ in range(2)]
    for request in held:
        small.first_chunk(request)
    waiting = small.send("embed", {"input": ["x"]})
    small.send("$/cancelRequest", {"id": waiting})
    assert small.response(waiting)["error"]["data"]["reason"] == "cancelled"
    for request in held:
        small.send("$/cancelRequest", {"id": request})


def test_a_text_that_is_too_long_is_refused_with_the_limit(embedding: RawClient) -> None:
    error = embedding.call("embed", {"input": ["short", "word " * 2000]})["error"]
    assert (error["code"], error["data"]["context_tokens"]) == (1006, 512)


@pytest.mark.parametrize("params", [{"input": []}, {"input": ["x"] * 257}, {"input": "x"}, {"input": [1]}])
def test_a_wrong_input_is_refused_by_name(client: RawClient, params: dict[str, object]) -> None:
    error = client.call("embed", params)["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "input")


def test_a_model_that_embeds_says_that_it_cannot_generate_or_rank(embedding: RawClient) -> None:
    assert embedding.call("infer", {"prompt": CANARY})["error"]["data"]["lacks"] == "generate"
    asked = {"state": CANARY, "questions": [{"type": "predicate", "instructions": CANARY}]}
    assert embedding.call("decide", asked)["error"]["data"]["lacks"] == "decisions"
    assert embedding.call("rerank", {"query": "q", "documents": ["d"]})["error"]["data"]["lacks"] == "rerank"
    (model,) = [each for each in embedding.result("models/list")["models"] if each["name"] == "texts"]
    assert model["can"] == ["embed"]


def test_documents_come_back_the_best_first(ranking: RawClient) -> None:
    documents = [f"document {number} {'x' * number}" for number in range(9)]
    results = ranking.result("rerank", {"query": "which one", "documents": documents})["results"]
    scores = [each["score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(each["index"] for each in results) == list(range(9))
    best = ranking.result("rerank", {"query": "which one", "documents": documents, "top_n": 2})["results"]
    assert [each["index"] for each in best] == [each["index"] for each in results[:2]]


def test_a_model_that_ranks_says_that_it_cannot_embed(ranking: RawClient) -> None:
    assert ranking.call("embed", {"input": ["x"]})["error"]["data"]["lacks"] == "embed"


def test_texts_count_in_the_totals(embedding: RawClient) -> None:
    before = embedding.result("daemon/status")["totals"]
    embedding.result("embed", {"input": ["x"]})
    embedding.call("rerank", {"query": "q", "documents": ["d"]})
    after = embedding.result("daemon/status")["totals"]
    assert [after[name] - before[name] for name in ("received", "completed", "rejected")] == [2, 1, 1]


@pytest.mark.slow
def test_texts_are_answered_after_the_engine_was_killed(start: Callable[..., Daemon]) -> None:
    daemon = start().ready()
    with daemon.connect() as client:
        daemon.engine().kill()
        assert len(client.result("embed", {"input": ["x"]})["embeddings"]) == 1
