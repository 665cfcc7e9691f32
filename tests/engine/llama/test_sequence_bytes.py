"""The bytes of a sequence against those that llama.cpp saves of one."""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from car_base.ipc.model_sizes import SequenceBytes
from car_daemon.gguf.validation import check
from car_engine.llama.calibration import sequence_bytes
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel
from tests.engine.llama.conftest import loaded
from tests.engine.llama.kinds import any_model
from tests.engine.llama.test_memory import cells_taken
from tools.random_models.by_layer import KV_HEADS, generate_by_layer
from tools.random_models.recurrent import INNER, KERNEL, STATE, generate_recurrent
from tools.random_models.shape import TINY
from tools.random_models.sliding import WINDOW, generate_sliding

__all__ = ["any_model"]  # a fixture

_FLOAT_BYTES = 4
# Positions, lengths and types beside the cells.
_HEADERS = 400


def test_cells_of_a_model_that_attends_are_computed(model: LlamaModel) -> None:
    need = sequence_bytes(model, threads=1)
    assert need == model.sequence_bytes()
    assert need.states == 0
    with closing(LlamaContext(model, sequences=1, context_tokens=256, threads=1)) as context:
        context.decode([5] * 100, list(range(100)), [0] * 100, [False] * 100)
        assert 0 <= context.saved_size(0) - need.of(100) < 100 * 16 + _HEADERS


def test_layers_with_kv_heads_of_their_own_take_what_the_header_says(tmp_path: Path) -> None:
    generate_by_layer(tmp_path / "m.gguf")
    facts = check(tmp_path / "m.gguf")
    assert facts.attention.kv_heads == tuple(KV_HEADS)
    estimated = SequenceBytes.attending(*facts.attention)
    with loaded(tmp_path / "m.gguf") as by_layer:
        need = sequence_bytes(by_layer, threads=1)
        assert by_layer.sequence_bytes().per_token < estimated.per_token
    assert need.per_token == estimated.per_token
    assert 0 <= need.states < _HEADERS


def test_states_of_a_recurrent_model_are_measured(tmp_path: Path) -> None:
    generate_recurrent(tmp_path / "m.gguf")
    with loaded(tmp_path / "m.gguf") as recurrent:
        need = sequence_bytes(recurrent, threads=1)
    states = TINY.layers * INNER * (STATE + KERNEL - 1) * _FLOAT_BYTES
    assert need.per_token == 0
    assert 0 <= need.states - states < _HEADERS
    assert need.of(4096) == need.states


@pytest.mark.parametrize(("sequences", "context_tokens"), [(1, 1024), (3, 2048), (4, 8192)])
def test_a_context_of_every_kind_takes_what_was_measured(
    any_model: LlamaModel, sequences: int, context_tokens: int
) -> None:
    planned = sequences * sequence_bytes(any_model, threads=1).of(context_tokens)
    # llama.cpp logs hundredths of a MiB.
    taken = cells_taken(any_model, sequences, context_tokens)
    assert planned == pytest.approx(taken, rel=0.05, abs=0.01 * (1 << 20))


def test_windows_by_the_header_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    generate_sliding(tmp_path / "m.gguf")
    facts = check(tmp_path / "m.gguf")
    assert facts.attention.windows == (WINDOW, 0)
    with loaded(tmp_path / "m.gguf") as sliding:
        need = sequence_bytes(sliding, threads=1)
    by_header = SequenceBytes.attending(*facts.attention, masks=facts.masks)
    assert structs.replace(need, states=0) == by_header
    assert need.states < _HEADERS


def test_layers_with_a_sliding_window_have_a_mask_of_their_own_by_the_header_and_once_loaded(tmp_path: Path) -> None:
    generate_sliding(tmp_path / "m.gguf")
    with loaded(tmp_path / "m.gguf") as sliding:
        assert sequence_bytes(sliding, threads=1).masks == check(tmp_path / "m.gguf").masks == 2
