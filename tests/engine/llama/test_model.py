"""The weights and what the file says of them."""

from pathlib import Path

import pytest

from car_base.guide import PATH
from car_engine.llama.library import silence
from car_engine.llama.model import LlamaModel, ModelError


def load(path: Path) -> LlamaModel:
    silence()
    return LlamaModel(str(path), gpu_layers=0, progress=lambda _: None)


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF", b"GGUF\x03\0\0\0" + b"\0" * 16])
def test_a_file_that_is_no_model_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError):
        load(file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        load(tmp_path / "missing.gguf")


def test_a_truncated_model_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(PATH.read_bytes()[:100_000])
    with pytest.raises(ModelError):
        load(file)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(PATH.read_bytes().replace(b"llama", b"lemma"))
    with pytest.raises(ModelError, match="does not know the model's architecture, lemma;"):
        load(file)


def test_the_error_of_a_bad_file_does_not_quote_its_path(tmp_path: Path) -> None:
    file = tmp_path / "secret.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(ModelError) as error:
        load(file)
    assert "secret" not in str(error.value)


def test_a_load_reports_its_progress() -> None:
    heard: list[float] = []
    LlamaModel(str(PATH), gpu_layers=0, progress=heard.append).close()
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


@pytest.mark.parametrize("packed", [True, False])
def test_weights_are_packed_only_where_they_may_be(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    asked: list[bool] = []
    load = "car_engine.llama.model.binding.llama_model_load_from_file"
    monkeypatch.setattr(load, lambda _path, params: asked.append(params.use_extra_bufts))
    with pytest.raises(ModelError):
        LlamaModel(str(PATH), gpu_layers=0, packed=packed, progress=lambda _: None)
    assert asked == [packed]


def test_the_guide_model_says_what_it_is(model: LlamaModel) -> None:
    assert model.trained_context == 4096
    assert 0 < model.size_bytes <= PATH.stat().st_size
    assert model.metadata.chat_template is not None
    assert model.metadata.text("general.architecture") == "llama"
    assert model.metadata.text("there.is.no.such.key") is None


def test_the_kv_cache_grows_with_the_context(model: LlamaModel) -> None:
    need = model.sequence_bytes()
    assert need.of(1) > 0
    assert need.of(512) == 512 * need.of(1)
