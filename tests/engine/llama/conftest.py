"""The built-in guide model, loaded once."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from msgspec import structs

from car_base.guide import PATH
from car_base.ipc.frames import Prepared, Run
from car_base.ipc.types import KvType
from car_engine.grammar.constraint import Constraints
from car_engine.llama.context import LlamaContext
from car_engine.llama.library import silence
from car_engine.llama.model import LlamaModel
from car_engine.llama.sampler_chains import SamplerChains
from car_engine.llama.tokens import Vocabulary
from car_protocol.infer import GenerationOptions
from car_protocol.sampling import Sampling


def chains_of(vocabulary: Vocabulary, context: LlamaContext) -> SamplerChains:
    """Return what builds samplers for a context."""
    constraints = Constraints(vocabulary.pieces, vocabulary.ends, vocabulary.control)
    return SamplerChains(vocabulary, constraints, context.context_tokens)


def run_of(sampling: Sampling, seed: int = 1, constraint: str = "", **more: Any) -> Run:
    """Return the frame of a request that is sampled so."""
    options = GenerationOptions(**structs.asdict(sampling), seed=seed, **more)
    return Run(Prepared(1, b"", 8, constraint), options)


def prefill(context: LlamaContext, vocabulary: Vocabulary, prompt: str) -> None:
    """Decode a prompt, with logits for its last row alone."""
    tokens = vocabulary.tokenize(prompt, add_special=True, parse_special=False)
    rows = len(tokens)
    assert context.decode(tokens, list(range(rows)), [0] * rows, [False] * (rows - 1) + [True]) == 0


def last_row(vocabulary: Vocabulary, prompt: str) -> int:
    """Return the row that has the logits after a prompt."""
    return len(vocabulary.tokenize(prompt, add_special=True, parse_special=False)) - 1


def fill_weights(path: Path, weight: bytes) -> None:
    """Write bytes over all weights of a model file, again and again."""
    data, start = path.read_bytes(), GGUFReader(path).data_offset
    path.write_bytes(data[:start] + weight * ((len(data) - start) // len(weight)))


@contextmanager
def loaded(path: Path, kv_type: KvType = "f16") -> Iterator[LlamaModel]:
    """Load a model for the length of a block, without a word on stderr."""
    silence()
    with closing(LlamaModel(str(path), gpu_layers=0, kv_type=kv_type, progress=lambda _: None)) as model:
        yield model


MakeContext = Callable[..., LlamaContext]


@pytest.fixture(scope="session")
def model() -> Iterator[LlamaModel]:
    """The weights."""
    with loaded(PATH) as guide:
        yield guide


@pytest.fixture(scope="session")
def vocabulary(model: LlamaModel) -> Vocabulary:
    """The model's tokens."""
    return Vocabulary(model)


@pytest.fixture
def make_context(model: LlamaModel) -> Iterator[MakeContext]:
    """Build contexts that are closed after the test."""
    made: list[LlamaContext] = []

    def make(sequences: int = 2, context_tokens: int = 256) -> LlamaContext:
        # Two threads wait for each other longer than they work on so small a model.
        made.append(LlamaContext(model, sequences=sequences, context_tokens=context_tokens, threads=1))
        return made[-1]

    yield make
    for context in made:
        context.close()
