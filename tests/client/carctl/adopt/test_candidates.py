"""Models of other servers, as tables of card.toml: their names, their files where they lie, their settings."""

from pathlib import Path
from typing import Any

import pytest

from car_client.carctl.adopt.candidates import Candidate, of_llama_server, of_lm_studio, of_ollama
from car_client.carctl.models.ollama_store import OllamaModel, ollama_models
from car_client.carctl.models.stores import Found
from tests.client.carctl.adopt.store import OllamaStore

MODEL = Path("/b/sha256-a")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of weights."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    return tmp_path / "m.gguf"


def test_a_store_is_read_with_all_its_layers(tmp_path: Path, file: Path) -> None:
    store = OllamaStore(tmp_path)
    blob = store.add("llama3.2:3b", file, template="{{ .Prompt }}", system="Be short.", params={"stop": ["<|e|>"]})
    store.add("anna/mine", file, projector="GGUF", adapter="GGUF", messages=[{"role": "user", "content": "Hi"}])
    store.add("a/b:Q4_K_M", file, host="hf.co")
    damaged = store.folder / "manifests/registry.ollama.ai/library/damaged/latest"
    damaged.parent.mkdir()
    damaged.write_text("[" * 100_000)
    found = {each.name: each for each in ollama_models(store.folder)}
    assert found["llama3.2:3b"] == OllamaModel(
        "llama3.2:3b", blob, system="Be short.", params={"stop": ["<|e|>"]}, template="{{ .Prompt }}"
    )
    mine = found["anna/mine:latest"]
    assert (mine.projector is not None, mine.adapter is not None, mine.has_messages) == (True, True, True)
    assert found["hf.co/a/b:Q4_K_M"].model == blob
    assert found["damaged:latest"].model is None


def test_a_name_of_another_digest_reaches_no_file_outside_the_blobs(tmp_path: Path, file: Path) -> None:
    store = OllamaStore(tmp_path)
    store.add("m", file)
    manifest = store.folder / "manifests/registry.ollama.ai/library/m/latest"
    text = manifest.read_text()
    manifest.write_text(text.replace("sha256:", "sha256:../../"))
    assert [each.model for each in ollama_models(store.folder)] == [None]


def of(**members: Any) -> Candidate:
    (found,) = of_ollama([OllamaModel("m:latest", MODEL, **members)])
    return found


def test_settings_of_a_modelfile_become_keys_of_the_table_and_others_are_named() -> None:
    params = {"temperature": 0.2, "top_p": 0.9, "num_predict": 64, "num_ctx": 8192, "stop": ["<|end|>", "[INST]"]}
    table = {"path": str(MODEL), "system": "Be short.", "temperature": 0.2, "top_p": 0.9, "default_max_tokens": 64}
    assert of(system="Be short.", params=params) == Candidate("m:latest", table, ("m",))
    more = of(params={"num_predict": -1, "top_k": 20, "stop": "###"}, has_messages=True, projector=Path("/b/p"))
    assert more.table == {"path": str(MODEL), "projector": "/b/p"}
    assert more.notes == ("left out: its first messages, top_k, stop",)


def test_names_of_the_same_layers_are_one_model_and_other_settings_another() -> None:
    names = [OllamaModel(name, MODEL) for name in ("m:7b", "m:latest")]
    other = OllamaModel("tidy:latest", MODEL, system="Tidy up.")
    one, two = of_ollama([*names, other])
    assert (one.name, one.aliases, two.name) == ("m:7b", ("m:latest", "m"), "tidy:latest")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"missing": "model"}, "ollama pull m:latest"),
        ({"adapter": Path("/b/a")}, "adapter /b/a"),
    ],
)
def test_a_model_that_would_answer_otherwise_stays_with_its_reason(members: dict[str, Any], why: str) -> None:
    assert why in of(**members).why_not
    assert "no GGUF file" in of_ollama([OllamaModel("cloud:latest", None)])[0].why_not


def found(path: str, projector: str | None = None) -> Found:
    return Found("x", Path(path).stem, Path(path), 1, None if projector is None else Path(projector))


def test_files_of_lm_studio_have_the_key_of_their_repository() -> None:
    folder = "/m/lmstudio-community"
    one = found(f"{folder}/Qwen2.5-7B-Instruct-GGUF/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "/p")
    two = [found(f"{folder}/Tiny-GGUF/Tiny-{each}.gguf") for each in ("Q4_K_M", "Q8_0")]
    first, *others = of_lm_studio([one, *two])
    table: dict[str, object] = {"path": str(one.path), "projector": "/p"}
    assert first == Candidate("qwen2.5-7b-instruct", table, ("Qwen2.5-7B-Instruct-Q4_K_M",))
    assert [each.name for each in others] == ["tiny@q4_k_m", "tiny@q8_0"]


PRESETS = """
version = 1
[*]
c = 4096
[small]
model = /m/small.gguf
mmproj = p.gguf
[hub]
hf-repo = a/b
[big]
LLAMA_ARG_MODEL = /m/big.gguf
"""


def test_models_of_llama_server_are_those_of_its_command_line_presets_and_folder() -> None:
    command = ["llama-server", "-m", "m.gguf", "--alias=one,two", "--mmproj", "/p.gguf", "--lora", "/l.gguf"]
    (one,) = of_llama_server(command, Path("/srv"), PRESETS, [])
    assert one.table == {"path": "/srv/m.gguf", "projector": "/p.gguf"}
    assert (one.name, one.aliases, one.notes) == ("one", ("two",), ("left out: --lora, which requests name here",))
    files = [found("/srv/models/a.gguf"), found("/srv/models/vision/b-Q4_K_M.gguf")]
    many = of_llama_server(["llama-server", "--models-dir", "models"], Path("/srv"), PRESETS, files)
    assert [(each.name, each.aliases) for each in many] == [
        ("small", ()),
        ("big", ()),
        ("a", ()),
        ("vision", ("b-Q4_K_M",)),
    ]
    assert many[0].table == {"path": "/m/small.gguf", "projector": "/srv/p.gguf"}
    hub = found("/c/hub/models--ggml-org--tiny-GGUF/snapshots/0a/tiny-Q8_0.gguf")
    assert of_llama_server([], Path("/"), "", [hub])[0].name == "ggml-org/tiny-GGUF:Q8_0"
