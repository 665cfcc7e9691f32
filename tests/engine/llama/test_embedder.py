"""Vectors and scores from a second context, on generated models."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.capacity.curve import BATCH_SIZES
from car_engine.llama.context import LlamaContext
from car_engine.llama.embedder import PACKED_TEXTS, POOLINGS, Embedder, RowsContext, TextContext, pack
from car_engine.llama.model import LlamaModel, ModelError
from car_engine.llama.tokens import Vocabulary
from car_engine.prompt.text_inputs import RerankPrompt
from tests.engine.llama.conftest import MakeContext, fill_weights, loaded
from tools.random_model import generate
from tools.random_models import embedding
from tools.random_models.embedding import CONTEXT, WIDTH, generate_embedding
from tools.random_models.model_file import ModelFile
from tools.random_models.recurrent import generate_recurrent
from tools.random_models.vocabulary import add_word_pieces
from tools.random_models.weights import RandomWeights

TEXTS = ["hello world", "a", "something else, and longer than that", "hello world", "the last of them"]
# Sums of 32-bit floats in another order, up to 5.2e-5 apart on a CPU without AVX-512; with flash attention on one with
# AVX-512 the vectors are ten times further apart.
TOLERANCE = 1e-4
PACKED_TOKENS = BATCH_SIZES["cpu"].texts


def generate_headless(path: Path, pooling: int = gguf.PoolingType.RANK) -> None:
    """Write a BERT model whose file names any pooling, and that has no head."""
    file = ModelFile(path, "bert", "headless")
    embedding._add_shape(file.metadata, embedding.CONTEXT)
    file.metadata.add_uint32("bert.pooling_type", pooling)
    file.write(embedding._tensors(add_word_pieces(file.metadata), embedding.CONTEXT, False, RandomWeights(1)))


GENERATORS: dict[str, Callable[[Path], None]] = {
    "mean": generate_embedding,
    "cls": lambda path: generate_embedding(path, "cls"),
    "rank": lambda path: generate_embedding(path, "rank"),
    "headless": generate_headless,
    "unknown": lambda path: generate_headless(path, 9),
    "llama": lambda path: generate(path, "tiny", "f16"),
    "recurrent": generate_recurrent,
}
EMBED = ["mean", "cls", "llama", "recurrent"]

Open = Callable[..., Embedder]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaModel]]:
    """A model of every kind."""
    folder = tmp_path_factory.mktemp("models")
    for name, write in GENERATORS.items():
        write(folder / name)
    with ExitStack() as stack:
        yield {name: stack.enter_context(loaded(folder / name)) for name in GENERATORS}


@pytest.fixture
def open_embedder(models: dict[str, LlamaModel]) -> Iterator[Open]:
    """Open embedders of a kind, closed after the test."""
    opened: list[Embedder] = []

    def open_one(name: str, context_tokens: int = 1024) -> Embedder:
        model = models[name]
        opened.append(Embedder(model, Vocabulary(model), threads=1, context_tokens=context_tokens))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def tokenize(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    """Return what a request for vectors of the texts gives an embedder."""
    return [vocabulary.tokenize(text, add_special=True, parse_special=False) for text in texts]


def embed_all(embedder: Embedder, inputs: list[list[int]], *, normalize: bool = False) -> list[list[float]]:
    """Return the vectors of all inputs in their order, computed batch by batch."""
    vectors: dict[int, list[float]] = {}
    for batch in embedder.batches(inputs):
        found = embedder.embed([inputs[index] for index in batch], normalize=normalize)
        vectors.update(zip(batch, found, strict=True))
    return [vectors[index] for index in range(len(inputs))]


@pytest.mark.parametrize(
    ("name", "pooling", "ranks"),
    [("mean", "mean", False), ("cls", "cls", False), ("rank", "rank", True), ("llama", "mean", False)],
)
def test_an_embedder_pools_as_the_model_says_and_else_by_the_mean(
    open_embedder: Open, name: str, pooling: str, ranks: bool
) -> None:
    embedder = open_embedder(name)
    assert (embedder.pooling, embedder.ranks, embedder.dimensions) == (pooling, ranks, WIDTH)


@pytest.mark.parametrize("name", EMBED)
def test_a_text_has_the_same_vector_alone_and_among_others(
    models: dict[str, LlamaModel], open_embedder: Open, name: str
) -> None:
    embedder = open_embedder(name)
    inputs = tokenize(Vocabulary(models[name]), TEXTS * 4)
    together = embed_all(embedder, inputs)
    alone = [embedder.embed([tokens], normalize=False)[0] for tokens in inputs]
    assert np.allclose(together, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "recurrent"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_model_that_also_generates_has_the_same_vectors_without_logits(
    models: dict[str, LlamaModel], name: str, pooling: str
) -> None:
    model = models[name]
    inputs = tokenize(Vocabulary(model), TEXTS)[:1] if model.keeps_states else tokenize(Vocabulary(model), TEXTS)
    own = next(number for number, each in POOLINGS.items() if each == pooling)
    size = {"texts": len(inputs), "batch_tokens": 128 - 128 % len(inputs), "threads": 1}
    expected, rows = TextContext(model, own, **size), RowsContext(model, pooling, **size)
    assert expected.generates
    for width in (WIDTH, 1):
        assert np.allclose(rows.run(inputs, width), expected.run(inputs, width), rtol=0, atol=TOLERANCE)
    assert rows.ended
    for context in (expected, rows):
        context.close()


@pytest.mark.parametrize(("name", "ends"), [("llama", True), ("recurrent", True), ("mean", False), ("rank", False)])
def test_only_models_that_also_generate_and_do_not_rank_end_before_logits(
    open_embedder: Open, name: str, ends: bool
) -> None:
    assert isinstance(open_embedder(name)._context, RowsContext) is ends


def test_a_batch_without_logits_waits_shortly_for_a_thread_that_works(open_embedder: Open) -> None:
    embedder = open_embedder("llama")
    inputs, interval = [[300 + row for row in range(200)]], sys.getswitchinterval()

    waits, stop = {interval}, threading.Event()

    def work() -> None:
        while not stop.is_set():
            waits.add(sys.getswitchinterval())

    busy = threading.Thread(target=work)
    busy.start()
    for _ in range(3):
        embedder.embed(inputs, normalize=False)
    stop.set()
    busy.join()
    # The batch waits so long at each of its nodes; the usual 5 ms would be many times the batch itself.
    assert min(waits) <= 0.0002
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize("name", EMBED)
def test_different_texts_have_different_vectors(models: dict[str, LlamaModel], open_embedder: Open, name: str) -> None:
    embedder = open_embedder(name)
    vectors = np.array(embed_all(embedder, tokenize(Vocabulary(models[name]), TEXTS)))
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    assert np.allclose(vectors[0], vectors[3], rtol=0, atol=TOLERANCE)
    for row, other in [(0, 1), (0, 2), (1, 2), (2, 4)]:
        assert np.abs(vectors[row] - vectors[other]).max() > 0.01


@pytest.mark.parametrize("name", EMBED)
def test_normalized_vectors_have_length_one_and_the_same_direction(
    models: dict[str, LlamaModel], open_embedder: Open, name: str
) -> None:
    embedder = open_embedder(name)
    inputs = tokenize(Vocabulary(models[name]), TEXTS)
    plain, normal = (np.array(embed_all(embedder, inputs, normalize=flag)) for flag in (False, True))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.01
    assert np.allclose(normal, plain / lengths, rtol=0, atol=TOLERANCE)


def test_a_vector_of_zeros_stays_one(open_embedder: Open) -> None:
    embedder = open_embedder("llama")
    # A generated model embeds its control tokens as zeros.
    assert embedder.embed([[0, 1]], normalize=True) == [[0.0] * WIDTH]


def test_the_mean_of_a_long_text_is_over_all_of_it(open_embedder: Open) -> None:
    embedder = open_embedder("llama")
    tokens = [300 + row % 100 for row in range(embedder.max_tokens)]
    whole, changed = (embedder.embed([one], normalize=True)[0] for one in (tokens, [301, *tokens[1:]]))
    assert len(tokens) > PACKED_TOKENS
    assert 1e-5 < np.abs(np.subtract(whole, changed)).max() < 0.1


@pytest.mark.parametrize(("name", "longest"), [("mean", CONTEXT), ("rank", CONTEXT), ("llama", 1024)])
def test_an_input_that_is_empty_or_too_long_is_an_error(open_embedder: Open, name: str, longest: int) -> None:
    embedder = open_embedder(name)
    run = embedder.score if embedder.ranks else lambda inputs: embedder.embed(inputs, normalize=False)
    assert embedder.max_tokens == longest
    assert len(run([[7] * longest])) == 1
    for count in (0, longest + 1):
        with pytest.raises(ValueError, match=f"not {count}"):
            run([[7] * count])
        with pytest.raises(ValueError, match=f"not {count}"):
            embedder.batches([[7], [7] * count])


@pytest.mark.parametrize("context_tokens", [1, 77, 129, 500])
@pytest.mark.parametrize("name", ["mean", "llama", "recurrent"])
def test_any_context_can_be_asked_for(open_embedder: Open, name: str, context_tokens: int) -> None:
    embedder = open_embedder(name, context_tokens)
    assert embedder.max_tokens == context_tokens
    assert len(embed_all(embedder, [[7] * context_tokens, [8], [9]])) == 3


def test_what_is_no_batch_is_an_error(open_embedder: Open) -> None:
    embedder = open_embedder("mean")
    for inputs in ([], [[7]] * (PACKED_TEXTS + 1), [[7] * CONTEXT] * 2):
        with pytest.raises(ValueError, match="a batch has"):
            embedder.embed(inputs, normalize=False)
    for token in (-1, 10**6):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            embedder.embed([[7, token]], normalize=False)
    assert embedder.batches([]) == []


def test_a_recurrent_model_takes_one_text_at_a_time(open_embedder: Open) -> None:
    assert open_embedder("recurrent").batches([[7], [8], [9]]) == [[0], [1], [2]]


def test_generating_and_embedding_do_not_disturb_each_other(model: LlamaModel, make_context: MakeContext) -> None:
    vocabulary = Vocabulary(model)
    embedder = Embedder(model, vocabulary, threads=1, context_tokens=256)
    inputs = tokenize(vocabulary, TEXTS)
    vectors = embed_all(embedder, inputs)
    context = make_context()
    expected = [greedy(context, number, 12) for number in (0, 1)]
    for number in (0, 1):
        context.cut(number, 0)
    written: list[list[int]] = [[], []]
    for _ in range(12):
        for number in (0, 1):
            written[number] = greedy(context, number, 1, written[number])
        assert embed_all(embedder, inputs) == vectors
    assert written == expected
    embedder.close()


def greedy(context: LlamaContext, number: int, steps: int, written: list[int] | None = None) -> list[int]:
    """Return what was written and what is likeliest to follow it, in a sequence that holds it but for its end."""
    prompt = [5 + number, 6, 7]
    text = prompt + (written or [])
    for _ in range(steps):
        start = context.last_position(number) + 1
        new = text[start:]
        rows = range(len(new))
        outputs = [row == len(new) - 1 for row in rows]
        assert context.decode(new, [start + row for row in rows], [number] * len(new), outputs) == 0
        text.append(int(context.logits(len(new) - 1).argmax()))
    return text[len(prompt) :]


def test_a_model_that_ranks_scores_pairs_and_does_not_embed(models: dict[str, LlamaModel], open_embedder: Open) -> None:
    ranker = open_embedder("rank")
    model = models["rank"]
    build = RerankPrompt(model.metadata.rerank_template, Vocabulary(model)).tokens
    pairs = [build("what is it", document) for document in ("a cat", "some dogs", "a cat")]
    together = ranker.score(pairs)
    alone = [ranker.score([pair])[0] for pair in pairs]
    assert np.allclose(together, alone, rtol=0, atol=TOLERANCE)
    assert together[0] == pytest.approx(together[2], abs=TOLERANCE)
    assert abs(together[0] - together[1]) > 1e-4
    with pytest.raises(ValueError, match="does not give vectors"):
        ranker.embed(pairs, normalize=False)
    with pytest.raises(ValueError, match="does not rank"):
        open_embedder("mean").score(pairs)


@pytest.mark.parametrize(
    ("name", "message"),
    [("headless", "lacks a classification head"), ("unknown", "is not one that this llama.cpp supports")],
)
def test_a_model_whose_pooling_cannot_be_done_is_an_error(open_embedder: Open, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_embedder(name)


lengths = st.lists(st.integers(1, 3 * PACKED_TOKENS) | st.integers(1, 12), max_size=200)


@given(lengths=lengths, texts=st.integers(1, PACKED_TEXTS), tokens=st.sampled_from([PACKED_TOKENS, 512]))
def test_packing_takes_every_input_once_and_keeps_the_bounds(lengths: list[int], texts: int, tokens: int) -> None:
    packed = pack(lengths, texts, tokens)
    assert sorted(index for batch in packed for index in batch) == list(range(len(lengths)))
    for batch in packed:
        assert 1 <= len(batch) <= texts
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= tokens


@given(lengths=lengths, texts=st.integers(1, PACKED_TEXTS))
def test_packing_starts_a_batch_only_where_no_later_input_has_room_in_the_last(lengths: list[int], texts: int) -> None:
    packed = pack(lengths, texts, PACKED_TOKENS)
    for batch, following in pairwise(packed):
        shortest = min(lengths[index] for index in following)
        used = sum(lengths[index] for index in batch)
        assert len(batch) == texts or used + shortest > PACKED_TOKENS


def test_packing_by_length_makes_fewer_batches_than_packing_in_order() -> None:
    assert len(pack([60, 4] * 8 + [4] * 8, PACKED_TEXTS, 64)) == 9
    assert len(pack([40, 40, 20, 20], PACKED_TEXTS, 64)) == 2


@pytest.mark.parametrize("pooling", ["mean", "rank"])
def test_a_model_whose_weights_are_no_numbers_gives_no_vectors_or_scores(tmp_path: Path, pooling: str) -> None:
    path = tmp_path / "m.gguf"
    generate_embedding(path, pooling)
    fill_weights(path, b"\xff\xff")
    with loaded(path) as model, pytest.raises(ModelError, match="its weights are damaged: fetch the file again"):
        Embedder(model, Vocabulary(model), threads=1, context_tokens=256)
