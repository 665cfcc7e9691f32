"""`carctl models pull` against a stand-in for the hub: whole files, checked, or none."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_protocol.hub import models_folder
from tests.client.carctl.command import carctl, carctl_on_pipe, carctl_on_terminal
from tests.client.carctl.hub.fake_hub import COMMIT, FakeHub
from tests.client.fake_daemon import PATIENCE_S

NAME = "owner/repo/sub/model.gguf"
CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub with one file of a megabyte."""
    hub = FakeHub()
    hub.files[NAME] = CONTENT
    with hub.serving():
        yield hub


@pytest.fixture
def env(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose data is in a folder of the test's."""
    return {
        "HF_ENDPOINT": hub.url,
        "XDG_DATA_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "HF_HUB_DOWNLOAD_TIMEOUT": "30",
    }


@pytest.fixture
def place(env: dict[str, str]) -> Path:
    """The path of the downloaded file."""
    return models_folder(env) / NAME


def pull(env: dict[str, str], *more: str, file: str = NAME) -> tuple[int, str, list[str]]:
    """Run the command; return its code, what it printed, and its lines on standard error."""
    done = carctl("models", "pull", f"hf:{file}", *more, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode().splitlines()


def left_over(place: Path) -> list[str]:
    """Return the names of what lies in the file's folder."""
    return sorted(each.name for each in place.parent.iterdir()) if place.parent.is_dir() else []


# What ends well.


def test_a_file_is_downloaded_whole_and_its_path_is_printed(hub: FakeHub, env: dict[str, str], place: Path) -> None:
    code, printed, said = pull(env)
    assert (code, printed) == (0, f"{place}\n")
    assert said[0] == "model.gguf: 1 MiB"
    assert said[-1] == f"serve it with: card --model hf:{NAME}"
    assert "model.gguf: 50%" in said
    assert place.read_bytes() == CONTENT
    assert left_over(place) == ["model.gguf"]
    assert [each.path for each in hub.downloads] == [f"/owner/repo/resolve/{COMMIT}/sub/model.gguf"]


def test_what_is_there_is_not_downloaded_again_and_what_is_not_the_same_is(
    hub: FakeHub, env: dict[str, str], place: Path
) -> None:
    pull(env)
    code, printed, said = pull(env)
    assert (code, printed, said[0]) == (0, f"{place}\n", "model.gguf is there already")
    assert len(hub.downloads) == 1
    hub.files[NAME] = CONTENT[::-1]
    assert pull(env)[0] == 0
    assert (place.read_bytes(), left_over(place)) == (CONTENT[::-1], ["model.gguf"])


def test_the_token_goes_to_the_hub_and_not_to_the_store_that_it_names(
    hub: FakeHub, env: dict[str, str], place: Path
) -> None:
    hub.elsewhere = True
    assert pull(env | {"HF_TOKEN": "hf_secret"})[0] == 0
    assert place.read_bytes() == CONTENT
    asked = {("stored" in each.path): each.authorization for each in hub.requests}
    assert asked == {False: "Bearer hf_secret", True: None}


def test_a_revision_is_what_the_hub_is_asked_for(hub: FakeHub, env: dict[str, str]) -> None:
    assert pull(env, "--revision", COMMIT)[0] == 0
    assert {each.path for each in hub.requests} == {f"/owner/repo/resolve/{COMMIT}/sub/model.gguf"}


def test_a_file_that_git_keeps_itself_is_compared_by_git_s_hash(hub: FakeHub, env: dict[str, str], place: Path) -> None:
    hub.etags[NAME] = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    assert pull(env)[0] == 0
    assert place.read_bytes() == CONTENT


def test_all_parts_of_a_model_come_from_one_commit_and_none_is_in_place_before_all_are_whole(
    hub: FakeHub, env: dict[str, str]
) -> None:
    parts = [f"owner/repo/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.files |= {part: part.encode() for part in parts}
    hub.etags[parts[2]] = "0" * 64
    folder = models_folder(env)
    assert pull(env, file=parts[0])[0] == 1
    assert [part for part in parts if (folder / part).exists()] == []
    hub.etags.clear()
    del hub.requests[:]
    code, printed, _ = pull(env, file=parts[0])
    assert (code, printed) == (0, f"{folder / parts[0]}\n")
    assert [(folder / part).read_bytes() for part in parts] == [part.encode() for part in parts]
    assert left_over(folder / parts[0]) == [Path(part).name for part in parts]
    assert [each.path for each in hub.downloads] == [f"/owner/repo/resolve/{COMMIT}/{Path(parts[2]).name}"]
    hub.files |= {part: part.upper().encode() for part in parts}
    assert pull(env, file=parts[0])[0] == 0
    assert [(folder / part).read_bytes() for part in parts] == [part.upper().encode() for part in parts]


# What breaks off.


def test_a_connection_that_is_cut_is_made_again_and_goes_on_where_it_ended(
    hub: FakeHub, env: dict[str, str], place: Path
) -> None:
    hub.cuts = [300_000, 400_000]
    assert pull(env)[0] == 0
    assert place.read_bytes() == CONTENT
    assert [each.range for each in hub.downloads] == ["bytes=0-", "bytes=300000-", "bytes=700000-"]


def test_what_came_before_an_interrupt_is_not_downloaded_again(
    hub: FakeHub, env: dict[str, str], place: Path, tmp_path: Path
) -> None:
    hub.silent_after = 500_000
    with carctl_on_pipe("models", "pull", f"hf:{NAME}", env=env) as process:
        assert hub.silent.wait(PATIENCE_S)
        assert process.stderr is not None
        while b"40%" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert not place.exists()
    (part,) = place.parent.iterdir()
    begun = part.stat().st_size
    assert part.name.startswith(".")
    assert 0 < begun <= 500_000
    hub.silent_after = None
    code, _, said = pull(env)
    assert (code, said[0]) == (0, f"model.gguf: 1 MiB, {begun / 1024:.0f} KiB of it here already")
    assert hub.downloads[-1].range == f"bytes={begun}-"
    assert (place.read_bytes(), left_over(place)) == (CONTENT, ["model.gguf"])


def test_a_hub_that_cannot_go_on_is_read_from_the_start(hub: FakeHub, env: dict[str, str], place: Path) -> None:
    hub.ranges = False
    hub.cuts = [300_000]
    assert pull(env)[0] == 0
    assert place.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_in_place(hub: FakeHub, env: dict[str, str], place: Path) -> None:
    hub.etags[NAME] = "0" * 64
    code, printed, said = pull(env)
    assert (code, printed, left_over(place)) == (1, "", [])
    assert said[-1] == f"carctl: hf:{NAME} came with a wrong checksum and was removed: try again"


def test_a_disk_that_takes_no_more_is_told_and_what_came_is_used_later(
    hub: FakeHub, env: dict[str, str], place: Path
) -> None:
    command = [sys.executable, "-c", "from car_client.carctl.main import main; main()", "models", "pull", f"hf:{NAME}"]
    # In units of 512 bytes: what a full disk does, this limit of a process does too.
    limited = ["/bin/sh", "-c", 'ulimit -f 600; exec "$@"', "sh", *command]
    done = subprocess.run(limited, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"carctl: the disk is full in {place.parent} (file too large); the downloaded part is kept: make room, "
        "then run the same command again"
    )
    (part,) = place.parent.iterdir()
    begun = part.stat().st_size
    assert begun >= 300_000
    assert pull(env)[0] == 0
    assert hub.downloads[-1].range == f"bytes={begun}-"
    assert place.read_bytes() == CONTENT


def test_a_second_download_of_the_same_file_is_refused(hub: FakeHub, env: dict[str, str], place: Path) -> None:
    part = place.with_name(f".model.gguf.{hub.etag(NAME)[:16]}.part")
    part.parent.mkdir(parents=True)
    with part.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, said = pull(env)
    assert (code, said[-1]) == (1, f"carctl: another carctl is downloading this file, wait for it: {part}")


def test_a_link_that_leads_out_of_the_folder_is_not_followed(hub: FakeHub, env: dict[str, str], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = models_folder(env)
    folder.mkdir(parents=True)
    (folder / "owner").symlink_to(outside)
    code, _, said = pull(env)
    assert (code, list(outside.iterdir())) == (1, [])
    assert said[-1].startswith(f"carctl: a link leads out of {folder}")


# What the hub refuses.


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        (401, "RepoNotFound", "there is no repository owner/repo, or it is private and HF_TOKEN may not read it"),
        (404, "RepoNotFound", "there is no repository owner/repo, or it is private and HF_TOKEN may not read it"),
        (404, "EntryNotFound", "owner/repo has no file sub/model.gguf in revision main"),
        (403, "GatedRepo", "owner/repo is gated: accept its terms at"),
        (429, "", "the hub answered with HTTP status 429, too many requests: wait some minutes, or set HF_TOKEN"),
        (500, "", "the hub answered with HTTP status 500: try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    hub: FakeHub, env: dict[str, str], place: Path, status: int, code: str, line: str
) -> None:
    hub.refusals[NAME] = (status, code)
    ended, printed, said = pull(env)
    assert (ended, printed, len(said), left_over(place)) == (1, "", 1, [])
    assert said[0].startswith(f"carctl: {line}")


def test_a_revision_that_is_not_there_is_named(env: dict[str, str]) -> None:
    assert pull(env, "--revision", "v9") == (1, "", ["carctl: owner/repo has no revision v9"])


def test_without_a_server_the_line_says_which_was_tried(tmp_path: Path) -> None:
    hub = FakeHub()
    with hub.serving():
        pass
    code, _, said = pull({"HF_ENDPOINT": hub.url, "XDG_DATA_HOME": str(tmp_path)})
    assert (code, len(said)) == (1, 1)
    assert said[0].startswith(f"carctl: cannot reach {hub.url}: ")


def test_something_that_is_no_hub_is_told_from_one(hub: FakeHub, env: dict[str, str]) -> None:
    hub.names_commit = False
    assert pull(env)[2] == [f"carctl: {hub.url} does not answer like a hub: check HF_ENDPOINT"]


def test_offline_means_offline(env: dict[str, str]) -> None:
    line = "carctl: HF_HUB_OFFLINE is set: nothing can be downloaded until it is unset"
    assert pull(env | {"HF_HUB_OFFLINE": "1"}) == (1, "", [line])


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "hf:model.gguf",
        "hf:owner/repo",
        "hf:owner/repo/../x.gguf",
        "hf:owner/repo/x.bin",
        "hf:o/r/x-00002-of-00003.gguf",
    ],
)
def test_a_name_that_is_none_is_wrong_usage(tmp_path: Path, name: str) -> None:
    done = carctl("models", "pull", name, env={"XDG_DATA_HOME": str(tmp_path)})
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert b"gguf" in done.stderr


# Terminals, and what is not installed.


def test_a_terminal_shows_a_bar(env: dict[str, str], place: Path) -> None:
    with carctl_on_terminal("models", "pull", f"hf:{NAME}", env=env | {"TERM": "xterm", "COLUMNS": "120"}) as terminal:
        shown = terminal.end().decode()
        assert terminal.process.returncode == 0
    assert "━━━━" in shown
    assert "1.0/1.0 MiB" in shown
    assert place.read_bytes() == CONTENT


def test_without_rich_a_terminal_shows_lines(env: dict[str, str]) -> None:
    pulling = carctl_on_terminal("models", "pull", f"hf:{NAME}", env=env | {"TERM": "xterm"}, without=("rich",))
    with pulling as terminal:
        assert b"model.gguf: 100%\n" in terminal.end()


def test_without_the_extra_the_line_says_how_to_install_it(env: dict[str, str]) -> None:
    pulling = carctl_on_terminal("models", "pull", f"hf:{NAME}", env=env, without=("huggingface_hub",))
    with pulling as terminal:
        assert terminal.end() == b"carctl: downloads need huggingface_hub: pip install 'card-daemon[hub]'\n"
        assert terminal.process.returncode == 1
