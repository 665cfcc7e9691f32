"""`carctl models add` and `use`: the configuration changes as a whole, with the daemon's consent, or not at all."""

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_client.carctl.hub.remote import FileChoice, PullError, choose, repository
from car_client.carctl.models.add import name_of
from car_protocol.errors import RpcError
from car_protocol.hub import HubFile, models_folder
from tests.client.carctl.command import carctl
from tests.client.carctl.hub.fake_hub import FakeHub
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model

FILES = [
    "README.md",
    "m-BF16.gguf",
    "m-Q8_0.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "mmproj-m-F32.gguf",
    "mmproj-m-f16.gguf",
    "imatrix.gguf",
    "Q6_K/m-Q6_K-00001-of-00002.gguf",
    "Q6_K/m-Q6_K-00002-of-00002.gguf",
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "s").start()
    daemon.answers["daemon/reload"] = {}
    daemon.answers["models/list"] = {"models": [model(), model(name="smol")]}
    daemon.answers["models/show"] = {"model": model(name="smol")}
    yield daemon
    daemon.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "smol.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def run(daemon: FakeDaemon, folder: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    home = {"XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder)}
    return carctl("--socket", daemon.path, "models", *words, env={**home, **env})


def written(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "car" / "card.toml").read_text())


def test_a_file_becomes_a_model_and_the_daemon_reads_it(daemon: FakeDaemon, tmp_path: Path, file: Path) -> None:
    done = run(daemon, tmp_path, "add", file, "--use")
    assert (done.returncode, done.stderr) == (0, b"")
    assert written(tmp_path) == {"default_model": "smol", "models": {"smol": {"path": str(file)}}}
    calls = [call.method for call in daemon.calls if call.method.startswith(("daemon/", "models/"))]
    assert calls == ["daemon/reload", "models/list", "models/show", "daemon/reload", "models/list"]
    assert b"carctl infer --model smol" in done.stdout


def test_a_configuration_that_the_daemon_refuses_goes_back_to_what_it_was(
    daemon: FakeDaemon, tmp_path: Path, file: Path
) -> None:
    config = tmp_path / "car" / "card.toml"
    config.parent.mkdir()
    config.write_text("# mine\n")
    daemon.answers["daemon/reload"] = RpcError("invalid_params", param="models.smol.path")
    done = run(daemon, tmp_path, "add", file)
    assert done.returncode == 1
    assert b"`models.smol.path`" in done.stderr
    assert b"card --check-config" in done.stderr
    assert config.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("words", "before"), [(["add"], "# mine\n"), (["use"], "# mine\n[models.smol]\npath = '/m'\n")]
)
def test_a_file_that_the_daemon_cannot_serve_is_refused_with_the_reason(
    daemon: FakeDaemon, tmp_path: Path, file: Path, words: list[str], before: str
) -> None:
    config = tmp_path / "car" / "card.toml"
    config.parent.mkdir()
    config.write_text(before)
    daemon.answers["models/show"] = {"model": model(name="smol"), "why": "the file is cut short"}
    done = run(daemon, tmp_path, *words, file if words == ["add"] else "smol", *(["--use"] if words == ["add"] else []))
    assert done.returncode == 2
    assert b"/models/smol.gguf cannot be served: the file is cut short; " in done.stderr
    assert config.read_text() == before
    assert daemon.calls[-1].method == "daemon/reload"


def test_a_model_that_only_embeds_is_tried_by_embed(daemon: FakeDaemon, tmp_path: Path, file: Path) -> None:
    daemon.answers["models/list"] = {"models": [model(name="smol", can=("embed",))]}
    assert b"try it: carctl embed --model smol" in run(daemon, tmp_path, "add", file).stdout


def test_a_daemon_that_reads_another_file_is_told_of(daemon: FakeDaemon, tmp_path: Path, file: Path) -> None:
    done = run(daemon, tmp_path, "add", file, "--name", "other")
    assert done.returncode == 0
    assert b"the daemon does not read" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "missing.gguf"), b"hf:OWNER/REPO[:QUANT]"),
        (("add", "Qwen/Qwen3-4B-GGUF"), b"hf:OWNER/REPO[:QUANT]"),
        (("add", "{file}/x"), b"cannot read"),
        (("add", "/"), b"is a folder: name a GGUF file in it"),
        (("add", "{part}"), b"name its first part"),
        (("add", "{file}", "--name", "guide"), b"the built-in model: give --name"),
        (("add", "/dev/null"), b"not a GGUF file"),
        (("add", "hf:nobody"), b"hf:OWNER/REPO"),
        (("add", "{file}", "--name", " "), b"not a name"),
        (("add", "{file}", "--projector", "/dev/null"), b"not a GGUF file"),
        (("use", "gude"), b"did you mean 'guide'"),
    ],
)
def test_what_cannot_be_added_or_used_changes_nothing(
    daemon: FakeDaemon, tmp_path: Path, file: Path, words: tuple[str, ...], reason: bytes
) -> None:
    part = file.with_name("m-00002-of-00003.gguf")
    part.write_bytes(b"GGUF")
    done = run(daemon, tmp_path, *(word.format(file=file, part=part) for word in words))
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (tmp_path / "car").exists()
    assert daemon.calls == []


def test_a_name_that_is_taken_is_refused(daemon: FakeDaemon, tmp_path: Path, file: Path) -> None:
    assert run(daemon, tmp_path, "add", file).returncode == 0
    done = run(daemon, tmp_path, "add", file)
    assert done.returncode == 2
    assert b"--name" in done.stderr


def test_a_repository_is_downloaded_with_its_projector_in_the_usual_quantization(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    hub = FakeHub()
    hub.files = {f"owner/repo/{name}": b"GGUF" + name.encode() for name in FILES}
    with hub.serving():
        done = run(daemon, tmp_path, "add", "hf:owner/repo", "--name", "smol", HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    folder = models_folder({"XDG_DATA_HOME": str(tmp_path / "data")}) / "owner" / "repo"
    assert sorted(path.name for path in folder.iterdir()) == ["m-Q4_K_M.gguf", "mmproj-m-f16.gguf"]
    table = {"hf": "owner/repo/m-Q4_K_M.gguf", "projector": str(folder / "mmproj-m-f16.gguf")}
    assert written(tmp_path) == {"models": {"smol": table}}


def test_without_a_daemon_the_file_is_written_for_its_start(daemon: FakeDaemon, tmp_path: Path, file: Path) -> None:
    daemon.stop()
    done = run(daemon, tmp_path, "add", file)
    assert done.returncode == 0
    assert b"no daemon runs" in done.stderr
    assert written(tmp_path) == {"models": {"smol": {"path": str(file)}}}


# The choice of files.


def chosen(source: str, paths: list[str]) -> FileChoice:
    wanted = repository(source)
    assert wanted is not None
    return choose(wanted, paths)


@pytest.mark.parametrize(
    ("source", "paths", "expected"),
    [
        ("hf:o/r", FILES, "m-Q4_K_M.gguf"),
        ("hf:o/r:q8_0", FILES, "m-Q8_0.gguf"),
        ("hf:o/r:UD-Q4_K_XL", ["a-Q4_K_XL.gguf", "a-UD-Q4_K_XL.gguf"], "a-UD-Q4_K_XL.gguf"),
        ("hf:o/r:Q6_K", FILES, "Q6_K/m-Q6_K-00001-of-00002.gguf"),
        ("hf:o/r", ["a-UD-Q4_K_XL.gguf", "a-IQ2_M.gguf"], "a-UD-Q4_K_XL.gguf"),
        ("hf:o/r", ["gpt-oss-20b-mxfp4.gguf"], "gpt-oss-20b-mxfp4.gguf"),
        ("hf:o/r", ["qwen2.5-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b-instruct-q4_0.gguf"], None),
        ("hf:o/r", ["model.gguf"], "model.gguf"),
    ],
)
def test_a_quantization_is_chosen_by_name_or_by_preference(source: str, paths: list[str], expected: str | None) -> None:
    assert chosen(source, paths).model == HubFile("o/r", expected or paths[0])


@pytest.mark.parametrize(
    ("source", "paths", "reason"),
    [
        ("hf:o/r:Q2_K", FILES, "there are: BF16, Q4_K_M, Q4_K_S, Q6_K, Q8_0"),
        ("hf:o/r", ["model.safetensors", "mmproj-x.gguf"], "no GGUF file"),
    ],
)
def test_a_repository_without_the_file_is_refused_with_what_there_is(
    source: str, paths: list[str], reason: str
) -> None:
    with pytest.raises(PullError, match=reason):
        chosen(source, paths)


@pytest.mark.parametrize("source", ["hf:o", "hf:o/r/f.gguf", "hf:o/r:Q4:K", "o/r/x"])
def test_only_owner_and_repository_name_a_repository(source: str) -> None:
    assert repository(source) is None


def test_a_name_is_that_of_the_file_without_the_number_of_a_part() -> None:
    assert [name_of("a.Q4_1.gguf"), name_of("b-00001-of-00003.gguf"), name_of(".gguf")] == ["a.Q4_1", "b", ".gguf"]


def test_the_files_in_which_prompts_survive_a_restart_are_offered_until_they_are_configured(
    daemon: FakeDaemon, tmp_path: Path, file: Path
) -> None:
    assert b"cache_dir" in run(daemon, tmp_path, "add", file).stdout
    config = tmp_path / "car" / "card.toml"
    config.write_text('[scheduler]\ncache_dir = "/cells"\n')
    assert b"cache_dir" not in run(daemon, tmp_path, "add", file).stdout
