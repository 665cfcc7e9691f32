"""The tokens of a query and a document."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import gguf
import pytest

from car_engine.llama.tokens import Vocabulary
from car_engine.prompt.text_inputs import RerankPrompt
from tests.engine.llama.conftest import loaded
from tools.random_models.embedding import generate_embedding
from tools.random_models.llama import add_shape, tensors
from tools.random_models.model_file import ModelFile
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights

BEGIN, END = 0, 1
TEMPLATE = "<|begin|>q: {query} d: {document}<|end|>"
Tokens = list[int]
Loaded = tuple[RerankPrompt, Callable[[str], Tokens], Callable[[str], Tokens]]
Load = Callable[[Callable[[Path], None]], Loaded]


def write_llama(path: Path, template: str | None = None, flags: Iterable[str] = ()) -> None:
    """Write a tiny llama with a template for pairs, and flags that its vocabulary sets."""
    file = ModelFile(path, "llama", "pairs", "f16")
    vocabulary = ByteVocabulary(TINY.vocabulary)
    add_shape(file.metadata, TINY)
    vocabulary.add_to(file.metadata)
    file.metadata.add_sep_token_id(END)
    for name in flags:
        file.metadata.add_bool(f"tokenizer.ggml.{name}", True)
    if template is not None:
        file.metadata.add_key_value("tokenizer.chat_template.rerank", template, gguf.GGUFValueType.STRING)
    file.write(tensors(TINY, vocabulary, RandomWeights(1)))


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write and load a model: its pairs, and text cut with control tokens as plain text, and as tokens."""
    with ExitStack() as stack:

        def load_one(write: Callable[[Path], None]) -> Loaded:
            write(tmp_path / "model")
            model = stack.enter_context(loaded(tmp_path / "model"))
            vocabulary = Vocabulary(model)

            def cut(text: str, *, parse: bool) -> Tokens:
                return vocabulary.tokenize(text, add_special=False, parse_special=parse)

            return (
                RerankPrompt(model.metadata.rerank_template, vocabulary),
                lambda text: cut(text, parse=False),
                lambda text: cut(text, parse=True),
            )

        yield load_one


def test_word_pieces_are_separated_and_ended_by_their_separator(load: Load) -> None:
    pairs, plain, parsed = load(lambda path: generate_embedding(path, "rank"))
    (first,), (separator,) = parsed("[CLS]"), parsed("[SEP]")
    assert pairs.tokens("ab", "c d") == [first, *plain("ab"), separator, *plain("c d"), separator]


def test_a_control_token_in_a_text_is_plain_text(load: Load) -> None:
    pairs, plain, parsed = load(lambda path: generate_embedding(path, "rank"))
    tokens = pairs.tokens("a [SEP] b", "[CLS]")
    assert tokens.count(*parsed("[SEP]")) == 2
    assert tokens.count(*parsed("[CLS]")) == 1
    assert len(tokens) == len(plain("a [SEP] b")) + len(plain("[CLS]")) + 3


@pytest.mark.parametrize(
    ("flags", "middle", "end"),
    [
        ([], [], []),
        (["add_eos_token"], [END], [END]),
        (["add_sep_token"], [END], []),
        (["add_eos_token", "add_sep_token"], [END, END], [END]),
    ],
)
def test_the_file_says_what_stands_between_the_texts_and_after_them(
    load: Load, flags: list[str], middle: Tokens, end: Tokens
) -> None:
    pairs, plain, _ = load(lambda path: write_llama(path, flags=flags))
    assert pairs.tokens("ab", "cd") == [BEGIN, *plain("ab"), *middle, *plain("cd"), *end]


@pytest.mark.parametrize(
    ("query", "document"), [("what", "that one"), ("", ""), ("{document}", "{query}"), ("{x} {", "\\1 }")]
)
def test_a_template_is_filled_once(load: Load, query: str, document: str) -> None:
    pairs, plain, _ = load(lambda path: write_llama(path, TEMPLATE))
    assert pairs.tokens(query, document) == [BEGIN, *plain(f"q: {query} d: {document}"), END]


def test_a_control_token_in_a_text_that_fills_a_template_is_plain_text(load: Load) -> None:
    pairs, plain, _ = load(lambda path: write_llama(path, TEMPLATE))
    assert pairs.tokens("<|end|>", "x<|begin|>") == [BEGIN, *plain("q: <|end|> d: x<|begin|>"), END]


def test_texts_that_leave_no_mark_for_a_template_are_an_error(load: Load) -> None:
    pairs, _, _ = load(lambda path: write_llama(path, TEMPLATE))
    with pytest.raises(ValueError, match="noncharacters"):
        pairs.tokens("x", "".join(chr(code) for code in range(0xFDD0, 0xFDF0)))
