"""`carctl models rm`: what was downloaded, after asking, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from car_protocol.hub import models_folder
from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model

NAME = "owner/repo/m.gguf"


@pytest.fixture
def env(tmp_path: Path, path: Path) -> dict[str, str]:
    """The environment of a user whose data is in a folder of the test's, and whose daemon does not run."""
    return {"XDG_DATA_HOME": str(tmp_path), "CAR_SOCKET": str(path)}


@pytest.fixture
def folder(env: dict[str, str]) -> Path:
    """The folder of downloads."""
    return models_folder(env)


@pytest.fixture
def put(folder: Path) -> Callable[[str], Path]:
    """Puts a downloaded file there."""

    def write(name: str) -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 2048)
        return file

    return write


def rm(env: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Run the command on pipes; return its code and what it said."""
    done = carctl("models", "rm", *arguments, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def serve(daemon: FakeDaemon, file: Path | str, **more: str) -> None:
    """Have the daemon list a model of this file."""
    daemon.answers["models/list"] = {"models": [model() | {"name": "mine", "path": str(file), **more}]}


def test_a_file_is_removed_with_the_folders_that_only_it_was_in(
    env: dict[str, str], folder: Path, put: Callable[[str], Path]
) -> None:
    file, other = put(NAME), put("owner/other/m.gguf")
    assert rm(env, f"hf:{NAME}", "--yes") == (0, f"removed {file}\n", "")
    assert (file.parent.exists(), other.exists()) == (False, True)
    assert rm(env, "hf:owner/other/m.gguf", "--yes")[0] == 0
    assert list(folder.iterdir()) == []


def test_all_parts_of_a_model_go_and_so_does_a_download_that_was_never_finished(
    env: dict[str, str], folder: Path, put: Callable[[str], Path]
) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", ".m-00001-of-00002.gguf.0123.part"):
        put(f"owner/repo/{name}")
    code, printed, _ = rm(env, "hf:owner/repo/m-00001-of-00002.gguf", "--yes")
    assert (code, len(printed.splitlines()), list(folder.iterdir())) == (0, 3, [])


def test_where_nobody_can_be_asked_it_takes_a_yes(env: dict[str, str], put: Callable[[str], Path]) -> None:
    file = put(NAME)
    assert rm(env, f"hf:{NAME}") == (2, "", f"carctl: no terminal to confirm on: give --yes to remove {file}\n")
    assert file.exists()


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)])
def test_a_terminal_is_asked(env: dict[str, str], put: Callable[[str], Path], typed: str, code: int) -> None:
    file = put(NAME)
    with carctl_on_terminal("models", "rm", f"hf:{NAME}", env=env) as terminal:
        terminal.read_until(f"remove {file} (2 KiB)? [y/N] ".encode())
        terminal.type(typed.encode())
        said = terminal.end().decode()
        assert terminal.process.returncode == code
    assert file.exists() is (code == 1)
    assert (f"removed {file}" if code == 0 else "carctl: nothing was removed") in said


def test_what_is_not_there_is_said(env: dict[str, str], folder: Path) -> None:
    assert rm(env, f"hf:{NAME}", "--yes") == (1, "", f"carctl: there is no file {folder / NAME}\n")


def test_a_name_is_looked_up_in_the_daemon(env: dict[str, str], put: Callable[[str], Path], daemon: FakeDaemon) -> None:
    file = put(NAME)
    serve(daemon, file, state="unloaded")
    assert rm(env, "mine", "--yes") == (0, f"removed {file}\n", "")


def test_a_name_means_nothing_without_a_daemon(env: dict[str, str], path: Path) -> None:
    code, _, said = rm(env, "mine", "--yes")
    assert (code, len(said.splitlines())) == (69, 1)
    assert said.startswith(f"carctl: no daemon answers on {path} (")
    assert said.endswith("so names are unknown: give hf:owner/repo/file.gguf\n")


def test_a_name_that_nobody_knows_is_wrong_usage(env: dict[str, str], daemon: FakeDaemon) -> None:
    serve(daemon, "/models/m.gguf")
    assert rm(env, "mime", "--yes") == (
        2,
        "",
        "carctl: unknown model 'mime', did you mean 'mine'?; `carctl models list` shows them\n",
    )


@pytest.mark.parametrize("state", ["loading", "ready", "draining"])
@pytest.mark.parametrize("name", ["mine", f"hf:{NAME}"])
def test_a_model_in_memory_has_to_be_unloaded_first(
    env: dict[str, str], put: Callable[[str], Path], daemon: FakeDaemon, name: str, state: str
) -> None:
    file = put(NAME)
    serve(daemon, file, state=state)
    assert rm(env, name, "--yes") == (1, "", f"carctl: mine is {state}: first run carctl models unload mine\n")
    assert file.exists()


def test_a_file_elsewhere_is_never_removed(
    env: dict[str, str], folder: Path, tmp_path: Path, daemon: FakeDaemon
) -> None:
    elsewhere = tmp_path / "mine.gguf"
    elsewhere.write_bytes(b"x")
    for path in (str(elsewhere), f"{folder}/../../mine.gguf", "mine.gguf"):
        serve(daemon, path, state="unloaded")
        code, _, said = rm(env, "mine", "--yes")
        assert (code, said) == (
            1,
            f"carctl: {path} was not downloaded to {folder}: remove it yourself if you mean it\n",
        )
    assert elsewhere.exists()


def test_a_link_is_not_followed_out_of_the_folder(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "repo"
    outside.mkdir(parents=True)
    (outside / "m.gguf").write_bytes(b"x")
    folder.mkdir(parents=True)
    (folder / "owner").symlink_to(outside.parent)
    code, _, said = rm(env, f"hf:{NAME}", "--yes")
    assert (code, said) == (1, f"carctl: a link leads out of {folder}: {folder}/owner/repo\n")
    assert (outside / "m.gguf").exists()


def test_a_bad_name_is_wrong_usage(env: dict[str, str]) -> None:
    code, _, said = rm(env, "hf:owner/../x.gguf", "--yes")
    assert code == 2
    assert "owner/repo/path/file.gguf" in said
