"""The contents of a model's file, and the sequences that fit."""

import struct
from pathlib import Path
from typing import Any

import pytest

from car_daemon.gguf.invalid import InvalidModel
from car_daemon.models.entry import ModelEntry
from car_daemon.models.inspection import Inspected, estimated, inspect
from car_daemon.models.settings import ModelSettings
from car_protocol.models import ArraySize, Estimate, ModelFile
from tests.daemon.gguf.files import F32, model, text, u32
from tests.daemon.links import ready_of
from tools.random_models.positions import generate_positions
from tools.random_models.recurrent import INNER, KERNEL, STATE, generate_recurrent
from tools.random_models.shape import TINY

READY = ready_of(sequences=2, context_tokens=1024, kv_bytes=1)
# Two layers of two heads of eight keys and eight values in 16 bits.
KV_BYTES_PER_TOKEN = 2 * 2 * 16 * 2
# The attention mask of a batch of 512 rows in 16 bits.
MASK_BYTES_PER_TOKEN = 512 * 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small model."""
    return model(llama__context_length=u32(4096)).write(tmp_path / "m.gguf")


def entry(path: Path, **settings: Any) -> ModelEntry:
    """Return a model of this file."""
    return ModelEntry("m", ModelSettings(path, **settings), default=False, on_change=lambda _: None)


def fits(path: Path, left: int, **settings: Any) -> Estimate:
    """Return the estimate where so many bytes are left beside weights and buffers."""
    found = inspect(ModelSettings(path))
    return estimated(entry(path, **settings), found, beside(found) + left)


def holding(number: int, tokens: int) -> int:
    """Return the bytes of so many sequences of a length, with the attention mask."""
    return tokens * (number * KV_BYTES_PER_TOKEN + MASK_BYTES_PER_TOKEN)


def beside(found: Inspected) -> int:
    """Return the bytes of weights and buffers."""
    return found.estimate.weights + found.estimate.others


def test_a_file_is_reported_with_its_metadata_and_its_template(tmp_path: Path) -> None:
    template = "{{ message }}" * 1000
    some = {
        "tokenizer__chat_template": text(template),
        "general__file_type": u32(7),
        "a__truth": struct.pack("<IB", 7, 1),
        "a__share": struct.pack("<If", F32, 0.5),
        "a__nothing": struct.pack("<If", F32, float("nan")),
    }
    file = inspect(ModelSettings(model(**some).write(tmp_path / "m.gguf"))).file
    assert file.chat_template == template
    assert (file.architecture, file.parameters, file.file_type, file.vocabulary, file.parts) == ("llama", 256, 7, 4, 1)
    assert (file.context_length, file.embedding_length, file.block_count) == (64, 32, 2)
    assert file.metadata["tokenizer.ggml.tokens"] == ArraySize(4)
    assert file.metadata["general.name"] == "by hand"
    assert (file.metadata["a.truth"], file.metadata["a.share"], file.metadata["a.nothing"]) == (True, 0.5, "nan")
    assert "tokenizer.chat_template" not in file.metadata


def test_a_file_without_a_template_has_none_and_no_file_tells_without_end(tmp_path: Path) -> None:
    many = model(**{f"a{number}": u32(number) for number in range(1000)})
    file: ModelFile = inspect(ModelSettings(many.write(tmp_path / "m.gguf"))).file
    assert (file.chat_template, len(file.metadata)) == (None, 256)


def test_a_template_that_is_no_text_is_none(tmp_path: Path) -> None:
    odd = model(tokenizer__chat_template=u32(1)).write(tmp_path / "m.gguf")
    assert inspect(ModelSettings(odd)).file.chat_template is None


def test_a_file_that_cannot_be_loaded_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="cannot be read"):
        inspect(ModelSettings(tmp_path / "none.gguf"))
    with pytest.raises(InvalidModel, match="has not been downloaded"):
        inspect(ModelSettings(tmp_path / "none.gguf", pull="carctl models pull hf:o/r/none.gguf"))


def test_an_engine_takes_a_quarter_of_what_is_left_by_itself_and_an_explicit_figure_nine_tenths(path: Path) -> None:
    estimate = fits(path, 4 * holding(10, 4096))
    assert (estimate.context_tokens, estimate.kv_bytes_per_sequence) == (4096, 4096 * KV_BYTES_PER_TOKEN)
    assert (estimate.sequences, estimate.most_sequences, estimate.weights_bytes) == (10, 56, 1024)


def test_a_reserve_is_left_alone_and_a_context_that_was_asked_for_counts(path: Path) -> None:
    estimate = fits(path, 4 * holding(10, 1024) + 999, context_tokens=1000, reserve_bytes=999)
    assert (estimate.context_tokens, estimate.sequences, estimate.most_sequences) == (1024, 10, 56)


def test_what_does_not_fit_with_one_sequence_does_not_fit(path: Path) -> None:
    least = holding(1, 2048)
    assert (fits(path, least).sequences, fits(path, least).most_sequences) == (1, 1)
    assert (fits(path, least - 1).sequences, fits(path, least - 1).most_sequences) == (0, 0)
    found = inspect(ModelSettings(path))
    assert estimated(entry(path), found, 0).sequences == 0


def test_on_a_gpu_sizes_are_reported_without_a_number_of_sequences(path: Path) -> None:
    estimate = fits(path, 1 << 30, gpu_layers=-1)
    assert (estimate.weights_bytes, estimate.sequences, estimate.most_sequences) == (1024, None, None)


@pytest.mark.parametrize("devices", [("gpu0",), ("gpu0", "cpu")])
def test_a_replica_takes_the_same_whatever_its_device_is_called(path: Path, devices: tuple[str, ...]) -> None:
    settings = ModelSettings(path, devices=devices, gpu_layers=-1, replicas=2)
    one = inspect(ModelSettings(path))
    found = inspect(settings)
    assert found.estimate == one.estimate
    estimate = estimated(entry(path, devices=devices, gpu_layers=-1, replicas=2), found, 1 << 30)
    assert (estimate.weights_bytes, estimate.sequences) == (1024, None)


def test_replicas_on_the_host_divide_what_is_free(path: Path) -> None:
    found = inspect(ModelSettings(path, replicas=2))
    left = 4 * holding(10, 4096) + beside(found)
    alone, twins = entry(path), entry(path, replicas=2)
    assert estimated(twins, found, 2 * left).sequences == estimated(alone, found, left).sequences == 10


def test_a_loaded_model_is_reported_with_its_actual_context(path: Path) -> None:
    served = entry(path)
    served.replicas[0].become("ready", ready=READY)
    served.configured = ModelSettings(path.with_name("next.gguf"), context_tokens=256)
    assert estimated(served, inspect(ModelSettings(path)), 1 << 30).context_tokens == 1024


def test_no_context_is_promised_beyond_a_table_of_positions(tmp_path: Path) -> None:
    generate_positions(tmp_path / "m.gguf", 300)
    assert fits(tmp_path / "m.gguf", 10**9, context_tokens=2048).context_tokens == 300


def test_states_are_part_of_what_a_sequence_takes(tmp_path: Path) -> None:
    generate_recurrent(tmp_path / "m.gguf")
    states = TINY.layers * INNER * (STATE + KERNEL - 1) * 4
    estimate = fits(tmp_path / "m.gguf", 8 * states)
    assert (estimate.kv_bytes_per_sequence, estimate.sequences, estimate.most_sequences) == (states, 2, 7)
