"""Folders that only this user can write to."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base.host.private_folder import PrivateFolder


@pytest.fixture
def no_umask() -> Iterator[None]:
    """A process whose files are open to everybody unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def made(folder: PrivateFolder, name: str, data: bytes) -> None:
    with folder.draft(f"{name}.draft", len(data)) as file:
        os.write(file, data)
    folder.rename(f"{name}.draft", name)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_folders_and_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    with PrivateFolder(tmp_path / "car" / "curves") as folder:
        made(folder, "a", b"data")
        assert folder.read("a") == b"data"
    paths = [tmp_path / "car", tmp_path / "car" / "curves", tmp_path / "car" / "curves" / "a"]
    assert [mode(path) for path in paths] == [0o700, 0o700, 0o600]


@pytest.mark.usefixtures("no_umask")
def test_a_folder_that_was_open_to_others_is_closed_and_what_they_can_write_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(0o777)
    (tmp_path / "open" / "planted").write_bytes(b"data")
    with PrivateFolder(tmp_path / "open") as folder:
        assert mode(tmp_path / "open") == 0o700
        with pytest.raises(PermissionError):
            folder.read("planted")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_folder_or_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(PermissionError), PrivateFolder(tmp_path / "theirs"):
        pass
    with PrivateFolder(tmp_path / "ours") as folder:
        made(folder, "a", b"data")
        os.chown(tmp_path / "ours" / "a", 12345, 12345)
        with pytest.raises(PermissionError):
            folder.read("a")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "real" / "target").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"), PrivateFolder(tmp_path / "link"):
        pass
    with PrivateFolder(tmp_path / "real") as folder:
        (tmp_path / "real" / "a").symlink_to(tmp_path / "real" / "target")
        with pytest.raises(OSError, match="Too many levels"):
            folder.read("a")
        made(folder, "a", b"new")
        assert not (tmp_path / "real" / "a").is_symlink()
        assert (tmp_path / "real" / "target").read_bytes() == b"data"
