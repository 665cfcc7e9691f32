"""Files of cells: what is written is found and read by another engine; what cannot be trusted is a miss."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_engine.batching.prefix import Prefix, prefix_of
from car_engine.batching.reuse.stored_prefix import Contents, file_name, in_files
from car_engine.stored.cell_folder import CellFolder, Written
from car_engine.stored.cell_writer import CellWriter
from tests.engine.stored.keepers import keepers

MAKER = b"m" * 16
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def folder_of() -> Iterator[Callable[..., CellFolder]]:
    """Opens a folder as an engine does."""
    with keepers() as connections:

        def opened(path: Path, maker: bytes = MAKER) -> CellFolder:
            return CellFolder(path, LIMIT, maker, connections.writer(path, LIMIT))

        yield opened


class Saved(NamedTuple):
    """Contents of a file, and their tokens."""

    prefix: Prefix
    contents: Contents


def saved_of(count: int, first: int = 1, cells: int = 1000, namespace: str = "1000:salt\n[]") -> Saved:
    """Return cells and two states whose bytes follow from their first token."""
    states = {20: memoryview(bytes([first % 256]) * 30), 100: memoryview(bytes([first % 255]) * 40)}
    contents = Contents(memoryview(bytes([first % 256]) * cells), states)
    return Saved(prefix_of(range(first, first + count), namespace), contents)


def write(folder: CellFolder, saved: Saved) -> Written:
    named = in_files(saved.prefix)
    assert named is not None
    return folder.write(saved.contents, named)


def test_cells_are_found_and_read_by_another_engine(folder_of: Callable[..., CellFolder], tmp_path: Path) -> None:
    saved = saved_of(300)
    write(folder_of(tmp_path), saved)
    another = folder_of(tmp_path)
    (stored,) = another.found()
    assert np.array_equal(stored.prefix.tokens, saved.prefix.tokens)
    assert stored.marks == (20, 100)
    assert another.read(stored) == saved.contents


def test_files_are_private_whatever_the_umask_and_say_neither_salt_nor_tokens_in_their_names(
    folder_of: Callable[..., CellFolder], tmp_path: Path
) -> None:
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


@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_file_with_any_bit_turned_is_a_miss_and_goes(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, folder_of: Callable[..., CellFolder]
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
    return data.replace(b"card cells\n\x03", b"card cells\n\x04", 1)


@pytest.mark.parametrize("spoil", [truncated, longer, empty, of_another_format])
def test_a_spoiled_file_is_removed_when_an_engine_loads(
    folder_of: Callable[..., CellFolder], tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    file = tmp_path / stored.name
    file.write_bytes(spoil(file.read_bytes()))
    assert folder_of(tmp_path).found() == []
    assert not file.exists()


def test_a_file_of_another_model_or_build_is_removed(folder_of: Callable[..., CellFolder], tmp_path: Path) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    assert folder_of(tmp_path, b"n" * 16).found() == []
    assert not (tmp_path / stored.name).exists()


def test_a_file_under_the_name_of_another_user_is_a_miss(folder_of: Callable[..., CellFolder], tmp_path: Path) -> None:
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    renamed = stored.name.replace("1000-", "1001-")
    os.rename(tmp_path / stored.name, tmp_path / renamed)
    assert folder_of(tmp_path).found() == []
    assert not (tmp_path / renamed).exists()


def test_a_link_in_place_of_a_file_is_not_followed(folder_of: Callable[..., CellFolder], tmp_path: Path) -> None:
    path = tmp_path / "cells"
    stored = write(folder_of(path), saved_of(300)).stored
    os.rename(path / stored.name, tmp_path / "elsewhere")
    (path / stored.name).symlink_to(tmp_path / "elsewhere")
    assert folder_of(path).found() == []
    assert folder_of(path).read(stored) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_link_of_another_user_in_place_of_the_model_s_folder_is_not_followed(
    folder_of: Callable[..., CellFolder], tmp_path: Path
) -> None:
    path = tmp_path / "guide" / "cpu"
    stored = write(folder_of(path), saved_of(300)).stored
    os.rename(path.parent, tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    os.lchown(path.parent, 1001, 1001)
    with pytest.raises(OSError, match="it belongs to another user"):
        folder_of(path).found()
    assert folder_of(path).read(stored) is None
    assert [file.name for file in (tmp_path / "elsewhere" / "cpu").iterdir()] == [stored.name]


def test_what_the_daemon_refuses_raises(folder_of: Callable[..., CellFolder], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        write(folder_of(tmp_path), saved_of(300, cells=LIMIT))


def test_a_daemon_that_is_gone_raises_and_what_it_kept_is_read_on(
    folder_of: Callable[..., CellFolder], tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    stored = write(folder_of(tmp_path), saved_of(300)).stored
    theirs.close()
    with ours:
        folder = CellFolder(tmp_path, LIMIT, MAKER, CellWriter(ours))
        with pytest.raises(OSError, match="pipe"):
            write(folder, saved_of(400))
        assert folder.read(stored) == saved_of(300).contents


def test_a_person_and_its_delegate_have_files_of_their_own() -> None:
    named = [in_files(prefix_of(range(8), namespace)) for namespace in ("1000:anna:x", "1000@anna:x", "1000@bob:x")]
    names = [file_name(each) for each in named if each is not None]
    assert len(set(names)) == 3
    assert all(name.startswith("1000-") for name in names)


def test_files_are_read_ahead_in_pieces_up_to_a_limit_and_what_cannot_be_read_costs_nothing(
    folder_of: Callable[..., CellFolder], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    first, gone, last = (write(folder, saved_of(300, first, cells=250_000)).stored for first in (1, 2, 3))
    (tmp_path / gone.name).unlink()
    (tmp_path / last.name).write_bytes(b"damaged")
    assert len(list(folder.read_ahead([gone, last, first], 10 * LIMIT))) == 2
    assert len(list(folder.read_ahead([first, last], first.size))) == 1
    assert len(list(folder.read_ahead([replace(last, size=first.size + 1), first], first.size))) == 1
    assert folder.read(last) is None
    assert folder.read(first) is not None
