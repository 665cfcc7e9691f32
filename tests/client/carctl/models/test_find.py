"""`carctl models find` and `suggest`: what other programs have, and what fits a machine."""

import json
import os
import shlex
import subprocess
from datetime import date
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_client.carctl.hub.remote import repository
from car_client.carctl.models.find import add_command
from car_client.carctl.models.stores import Found, find_models
from car_client.carctl.models.suggestions import DATED, PURPOSES, SUGGESTIONS, Kind, Purpose, is_old, suggested
from car_client.carctl.terminal.text import WIDTH
from tests.client.carctl.command import carctl


def put(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"G" * size)
    return path


def manifest(home: Path, name: str, **layers: str) -> None:
    kinds = {"model": "application/vnd.ollama.image.model", "projector": "application/vnd.ollama.image.projector"}
    listed = [{"mediaType": kinds[kind], "digest": digest} for kind, digest in layers.items()]
    path = home / ".ollama/models/manifests/registry.ollama.ai" / name
    put(path).write_text(json.dumps({"layers": listed}))


def found(home: Path, **env: str) -> list[Found]:
    return [each for each in find_models(env, home) if each.path.is_relative_to(home)]


def test_files_of_every_program_are_found_where_they_lie(tmp_path: Path) -> None:
    studio = put(tmp_path / ".lmstudio/models/pub/repo/a-Q4_K_M.gguf", 10)
    projector = put(tmp_path / ".lmstudio/models/pub/repo/mmproj-a-f16.gguf")
    blob = put(tmp_path / ".cache/huggingface/hub/models--o--r/blobs/0a")
    snapshot = tmp_path / ".cache/huggingface/hub/models--o--r/snapshots/1/b.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(os.path.relpath(blob, snapshot.parent))
    first = put(tmp_path / ".cache/llama.cpp/c-00001-of-00002.gguf", 3)
    put(tmp_path / ".cache/llama.cpp/c-00002-of-00002.gguf", 5)
    own = put(tmp_path / ".local/share/car/models/o/r/d.gguf")
    ollama = put(tmp_path / ".ollama/models/blobs/sha256-aa", 7)
    manifest(tmp_path, "library/llama3.2/3b", model="sha256:aa")
    assert found(tmp_path) == [
        Found("LM Studio", "a-Q4_K_M", studio, 10, projector),
        Found("Hugging Face", "b", snapshot, 4),
        Found("llama.cpp", "c-00001-of-00002", first, 8),
        Found("card", "d", own, 4),
        Found("Ollama", "llama3.2:3b", ollama, 7),
    ]


def test_variables_of_the_programs_move_their_folders(tmp_path: Path) -> None:
    put(tmp_path / "hub/models--o--r/snapshots/1/b.gguf")
    put(tmp_path / "llama/c.gguf")
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "LLAMA_CACHE": str(tmp_path / "llama")}
    assert [each.name for each in found(tmp_path, **env)] == ["b", "c"]


def test_only_whole_models_within_reach_are_found(tmp_path: Path) -> None:
    cache = tmp_path / ".cache/llama.cpp"
    for name in (
        "a-00001-of-00003.gguf",
        "a-00003-of-00003.gguf",
        "b-00001-of-00002.gguf",
        "empty-00001-of-00000.gguf",
    ):
        put(cache / name)
    (cache / "b-00002-of-00002.gguf").symlink_to("nowhere")
    (cache / "loop.gguf").symlink_to("loop.gguf")
    (cache / "folder.gguf").mkdir()
    os.mkfifo(cache / "pipe.gguf")
    (cache / "circle").symlink_to(cache)
    whole = put(cache / "[x]-00001-of-00001.GGUF")
    assert found(tmp_path) == [Found("llama.cpp", "[x]-00001-of-00001", whole, 4)]


def test_a_projector_is_that_of_the_models_whose_names_begin_as_its_own(tmp_path: Path) -> None:
    cache = tmp_path / ".cache/llama.cpp"
    gemma, qwen = put(cache / "org_gemma-GGUF_gemma-Q4_K_M.gguf"), put(cache / "qwen_Qwen3-GGUF_Qwen3-Q8_0.gguf")
    projector = put(cache / "org_gemma-GGUF_mmproj-model-f16.gguf")
    assert {each.path: each.projector for each in found(tmp_path)} == {gemma: projector, qwen: None}


def test_hundreds_of_files_are_listed(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f".lmstudio/models/{number % 20}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f".lmstudio/models/{number % 20}/{number}.gguf").write_bytes(b"GGUF")
    assert len(found(tmp_path)) == 400


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "../x:aa", "sha256", "", "sha256:bb", "sha256:" + "a" * 5000]
)
def test_a_manifest_that_names_no_blob_is_not_a_model(tmp_path: Path, digest: str) -> None:
    put(tmp_path / ".ollama/models/blobs/sha256-aa")
    manifest(tmp_path, "library/x/latest", model=digest)
    assert found(tmp_path) == []


@pytest.mark.parametrize("text", ["", "[]", '{"layers": 3}', '{"layers": [{}]}', "[" * 100_000, "\x00"])
def test_a_strange_manifest_is_not_a_model(tmp_path: Path, text: str) -> None:
    put(tmp_path / ".ollama/models/manifests/r/library/x/latest").write_text(text)
    assert found(tmp_path) == []


def test_the_command_of_a_found_model_is_one_shell_line(tmp_path: Path) -> None:
    each = Found("Ollama", "llama3.2:3b", tmp_path / "a b" / "sha256-aa", 7, tmp_path / "p")
    words = shlex.split(add_command(each))
    path, projector = str(tmp_path / "a b" / "sha256-aa"), str(tmp_path / "p")
    assert words == ["carctl", "models", "add", path, "--name", "llama3.2-3b", "--projector", projector]


def test_a_path_in_the_home_folder_is_short(tmp_path: Path) -> None:
    path = put(tmp_path / ".lmstudio" / "models" / "a b.gguf")
    env = {"HOME": str(tmp_path)}
    lines = carctl("models", "find", env=env).stdout.decode().splitlines()
    assert "  carctl models add ~/'.lmstudio/models/a b.gguf'" in lines
    shell = ["sh", "-c", "printf %s ~/'.lmstudio/models/a b.gguf'"]
    read = subprocess.run(shell, env=env, capture_output=True, check=True)
    assert read.stdout.decode() == str(path)


def test_a_machine_without_files_is_sent_to_suggestions(tmp_path: Path) -> None:
    done = carctl("models", "find", env={"HOME": str(tmp_path)})
    assert done.returncode == 0
    assert b"carctl models suggest" in done.stdout or b"Ollama" in done.stdout
    assert isinstance(json.loads(carctl("models", "find", "--json", env={"HOME": str(tmp_path)}).stdout), list)


def test_every_suggestion_names_a_repository_and_fits_a_line() -> None:
    assert len({row.repo for row in SUGGESTIONS}) == len(SUGGESTIONS)
    assert [row.size_gb for row in SUGGESTIONS] == sorted(row.size_gb for row in SUGGESTIONS)
    assert len(DATED) == len("2026-11")
    for row in SUGGESTIONS:
        assert repository(row.source) is not None
        assert set(row.can) <= {"tools", "thinking", "fill", "images", "audio"}
        assert row.architecture
        assert set(row.kinds) <= set(get_args(Kind))
        assert row.needs_gb > row.size_gb
    listed = {row.source: row for row in SUGGESTIONS}
    for purpose in (None, *PURPOSES):
        shown = carctl("models", "suggest", *(["--for", purpose] if purpose else [])).stdout.decode()
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= WIDTH
        lines = [line.split() for line in shown.splitlines() if line.startswith("hf:")]
        assert lines
        for source, size, *_ in lines:
            assert size == f"{'' if listed[source].checked else '~'}{listed[source].size_gb:.1f}"
            assert listed[source].serves(purpose)


def test_every_purpose_has_models_and_an_agents_models_take_tools() -> None:
    for purpose in PURPOSES:
        assert any(row.serves(purpose) for row in SUGGESTIONS)
    assert all("tools" in row.can for row in SUGGESTIONS if row.serves("agent"))
    assert {kind for row in SUGGESTIONS for kind in row.kinds} == set(get_args(Kind))


@pytest.mark.parametrize(("today", "old"), [("2026-11-26", False), ("2027-05-31", False), ("2027-06-01", True)])
def test_a_table_older_than_six_months_is_old(today: str, *, old: bool) -> None:
    assert DATED == "2026-11", "the dates of this test go with it"
    assert is_old(date.fromisoformat(today)) == old


@given(memory=st.integers(1 << 20, 1 << 42), purpose=st.sampled_from((None, *PURPOSES)))
def test_up_to_ten_rows_fit_the_memory_or_are_the_next_larger(memory: int, purpose: Purpose | None) -> None:
    rows = suggested(memory, purpose)
    of_purpose = [row for row in SUGGESTIONS if row.serves(purpose)]
    fitting = [row for row in of_purpose if row.needs_gb * 1e9 <= memory]
    assert len(set(rows)) == len(rows) == min(10, len(of_purpose))
    assert rows[: min(10, len(fitting))] == fitting[::-1][:10]
