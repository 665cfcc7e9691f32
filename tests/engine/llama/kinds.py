"""The kinds of models by their memory: with cells that are cut anywhere, with windows, and with states."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from car_engine.llama.model import LlamaModel
from tests.engine.llama.conftest import loaded
from tools.random_model import generate
from tools.random_models.hybrid import generate_delta_net, generate_mamba2_hybrid, generate_short_convolution
from tools.random_models.recurrent import generate_recurrent
from tools.random_models.sliding import generate_sliding

KINDS: dict[str, Callable[[Path], None]] = {
    "plain": lambda path: generate(path, "tiny", "q8_0"),
    "windowed": generate_sliding,
    "recurrent": generate_recurrent,
    "convolution": generate_short_convolution,
    "delta net": generate_delta_net,
    "mamba 2": generate_mamba2_hybrid,
}


@pytest.fixture(scope="module", params=KINDS)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A generated model of each kind of memory."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    KINDS[request.param](path)
    with loaded(path) as model:
        yield model
