"""Files of cells: what is written is found and read by another engine; what cannot be trusted is a miss."""

import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.types import STORED_AGE_S
from car_engine.batching.prefix import prefix_of
from car_engine.batching.reuse.stored_prefix import in_files
from car_engine.batching.saved_cells import SavedPrefix
from car_engine.stored.cell_folder import CellFolder, Written

MAKER = b"m" * 16
NOW = 1_000_000_000.0


def folder_of(path: Path, limit: int = 1 << 20, maker: bytes = MAKER, now: float | None = None) -> CellFolder:
    return CellFolder(path, limit, maker, lambda: os.stat(path).st_mtime if now is None else now)


def saved_of(count: int, first: int = 1, cells: int = 1000, namespace: str = "1000:salt\n[]") -> SavedPrefix:
    """Return cells whose bytes follow from their first token."""
    prefix = prefix_of(range(first, first + count), namespace)
    return SavedPrefix(prefix, memoryview(bytes([first % 256]) * cells), 0)


def write(folder: CellFolder, saved: SavedPrefix) -> Written:
    named = in_files(saved.prefix)
    assert named is not None
    return folder.write(saved, named)


def age(path: Path, name: str, seconds: float) -> None:
    before = os.stat(path / name).st_mtime - seconds
    os.utime(path / name, (before, before))


def test_cells_are_found_and_read_by_another_engine(tmp_path: Path) -> None:
    saved = saved_of(300)
    write(folder_of(tmp_path), saved)
    another = folder_of(tmp_path)
    (stored,) = another.found()
    assert np.array_equal(stored.prefix.tokens, saved.prefix.tokens)
    assert another.read(stored) == saved.cells


def test_files_are_private_whatever_the_umask_and_say_neither_salt_nor_tokens_in_their_names(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "cells"
        write(folder_of(path), saved_of(300))
    finally:
        os.umask(before)
    (file,) = path.iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, file)] == [0o700, 0o600]
    assert file.name.startswith("1000-")
    assert b"salt" not in file.read_bytes()


@settings(deadline=None, max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_file_with_any_bit_turned_is_a_miss_and_goes(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("cells")
    stored = write(folder_of(path), saved_of(300)).stored
    data = bytearray((path / stored.name).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (path / stored.name).write_bytes(data)
    assert folder_of(path).read(stored) is None
    assert not list(path.iterdir())


def truncated(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + b"x"


def empty(_: bytes) -> bytes:
    return b""


def of_another_format(data: bytes) -> bytes:
    return data.replace(b"card cells\n\x01", b"card cells\n\x02", 1)


@pytest.mark.parametrize("spoil", [truncated, longer, empty, of_another_format])
def test_a_spoiled_file_is_removed_when_an_engine_loads(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    file = tmp_path / stored.name
    file.write_bytes(spoil(file.read_bytes()))
    assert folder_of(tmp_path).found() == []
    assert not file.exists()


def test_a_file_of_another_model_or_build_is_removed(tmp_path: Path) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    assert folder_of(tmp_path, maker=b"n" * 16).found() == []
    assert not (tmp_path / stored.name).exists()


def test_a_file_under_the_name_of_another_user_is_a_miss(tmp_path: Path) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    renamed = stored.name.replace("1000-", "1001-")
    os.rename(tmp_path / stored.name, tmp_path / renamed)
    assert folder_of(tmp_path).found() == []
    assert not (tmp_path / renamed).exists()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    stored = write(folder_of(path), saved_of(300)).stored
    os.rename(path / stored.name, tmp_path / "elsewhere")
    (path / stored.name).symlink_to(tmp_path / "elsewhere")
    assert folder_of(path).found() == []
    assert folder_of(path).read(stored) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_link_of_another_user_in_place_of_the_model_s_folder_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "guide" / "cpu"
    stored = write(folder_of(path), saved_of(300)).stored
    os.rename(path.parent, tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    os.lchown(path.parent, 1001, 1001)
    with pytest.raises(OSError, match="it belongs to another user"):
        folder_of(path).found()
    with pytest.raises(OSError, match="it belongs to another user"):
        write(folder_of(path), saved_of(400))
    assert folder_of(path).read(stored) is None
    assert [file.name for file in (tmp_path / "elsewhere" / "cpu").iterdir()] == [stored.name]


def test_files_with_other_names_stay_and_take_no_room(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_bytes(b"n" * 5000)
    os.utime(other, (0, 0))
    folder = folder_of(tmp_path, limit=3000, now=NOW)
    folder.found()
    stored = write(folder, saved_of(300)).stored
    assert {file.name for file in tmp_path.iterdir()} == {other.name, stored.name}


def test_the_least_recently_used_files_make_room(tmp_path: Path) -> None:
    limit = 3 * write(folder_of(tmp_path), saved_of(300)).stored.size + 100
    folder = folder_of(tmp_path, limit=limit)
    names = [write(folder, saved_of(300, first)).stored.name for first in (1, 2, 3)]
    for name, seconds in zip(names, (30, 20, 10), strict=True):
        age(tmp_path, name, seconds)
    (first,) = [each for each in folder.found() if each.name == names[0]]
    assert folder.read(first) is not None  # used now
    written = write(folder, saved_of(300, 4))
    assert written.removed == (names[1],)
    assert {each.name for each in tmp_path.iterdir()} == {names[0], names[2], written.stored.name}
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= limit


def test_a_user_who_stores_without_end_takes_no_room_from_another(tmp_path: Path) -> None:
    size = write(folder_of(tmp_path), saved_of(300, namespace="1000:\n[]")).stored.size
    folder = folder_of(tmp_path, limit=4 * size + 100)
    (kept,) = [each.name for each in tmp_path.iterdir()]
    age(tmp_path, kept, 1000)
    for first in range(2, 12):
        written = write(folder, saved_of(300, first, namespace="1001:\n[]"))
    assert len(written.removed) == 1
    names = {each.name for each in tmp_path.iterdir()}
    assert (len(names), kept in names, written.stored.name in names) == (4, True, True)


def test_a_file_as_large_as_the_folder_takes_all_of_it(tmp_path: Path) -> None:
    for uid in (1000, 1001):
        write(folder_of(tmp_path), saved_of(300, namespace=f"{uid}:\n[]"))
    folder = folder_of(tmp_path, limit=7000)
    assert len(write(folder, saved_of(300, 2, cells=5000, namespace="1002:\n[]")).removed) == 2


def test_a_lower_limit_removes_the_oldest_files_when_the_model_loads(tmp_path: Path) -> None:
    names = [write(folder_of(tmp_path), saved_of(300, first)).stored.name for first in (1, 2, 3)]
    for name, seconds in zip(names, (10, 30, 20), strict=True):
        age(tmp_path, name, seconds)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert {each.name for each in folder_of(tmp_path, limit=size - 1).found()} == {names[0], names[2]}


def test_the_same_prefix_again_takes_the_place_of_its_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, limit=3000)
    write(folder, saved_of(300))
    assert write(folder, saved_of(300)).removed == ()
    assert len(list(tmp_path.iterdir())) == 1


def test_files_that_were_not_used_for_a_week_go(tmp_path: Path) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    (tmp_path / "draft.cells.77").write_bytes(b"of an engine that was killed")
    assert len(folder_of(tmp_path).found()) == 1
    late = os.stat(tmp_path / stored.name).st_mtime + STORED_AGE_S + 1
    assert folder_of(tmp_path, now=late).found() == []
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_more_raises_and_leaves_no_draft(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(folder_of(tmp_path), saved_of(300, cells=5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())
