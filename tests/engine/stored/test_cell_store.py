"""The thread of stored cells: outcomes in order, one file in memory at a time, one warning for a disk that is full."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from car_base.ipc.cell_requests import CellsKept
from car_engine.batching.prefix import prefix_of
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored, Contents, in_files
from car_engine.stored.cell_folder import CellFolder, Written
from car_engine.stored.cell_store import CellStore
from car_engine.stored.cell_writer import CellWriter, NotWritten
from tests.engine.stored.keepers import keepers
from tests.pace import HANG_S

PATIENCE_S = HANG_S


class FullFolder(CellFolder):
    """A folder on a disk that may be full."""

    full = False

    def write(self, contents: Contents, prefix: Any) -> Written:
        """Write, if there is room."""
        if self.full:
            raise NotWritten(CellsKept(["removed"], 28))
        return super().write(contents, prefix)


class Store:
    """A store whose thread runs, its outcomes and its warnings."""

    def __init__(self, path: Path, writer: CellWriter) -> None:
        self.folder = FullFolder(path, 1 << 20, b"m" * 16, writer)
        self.outcomes: SimpleQueue[CellsRead | CellsStored] = SimpleQueue()
        self.warnings: list[tuple[str, dict[str, Any]]] = []
        self.store = CellStore(self.folder, [], self.outcomes.put, lambda *warning: self.warnings.append(warning))
        threading.Thread(target=self.store.run, daemon=True).start()

    def stored(self, first: int = 1) -> CellsStored:
        """Write a prefix; return the outcome."""
        named = in_files(prefix_of(range(first, first + 300), "1000:\n[]"))
        assert named is not None
        self.store.write(Contents(memoryview(b"c" * 500), {}), named)
        assert self.store.writing or not self.outcomes.empty()
        outcome = self.outcomes.get(timeout=PATIENCE_S)
        assert isinstance(outcome, CellsStored)
        assert not self.store.writing
        return outcome


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Store]:
    with keepers() as connections:
        yield Store(tmp_path / "cells", connections.writer(tmp_path / "cells", 1 << 20))


def test_cells_come_back_as_they_were_written(running: Store) -> None:
    stored = running.stored().stored
    assert stored is not None
    running.store.read(stored)
    read = running.outcomes.get(timeout=PATIENCE_S)
    assert isinstance(read, CellsRead)
    assert read.contents is not None
    assert bytes(read.contents.cells) == b"c" * 500
    running.store.taken()


def test_the_next_file_is_read_once_the_cells_before_it_are_taken(running: Store) -> None:
    stored = running.stored().stored
    assert stored is not None
    running.store.read(stored)
    running.store.read(stored)
    running.outcomes.get(timeout=PATIENCE_S)
    with pytest.raises(Empty):
        running.outcomes.get(timeout=0.05)
    running.store.taken()
    running.outcomes.get(timeout=PATIENCE_S)
    running.store.taken()


def test_a_full_disk_is_one_warning_until_a_write_succeeds(running: Store) -> None:
    running.folder.full = True
    assert running.stored(1) == CellsStored(None, ("removed",))
    assert running.stored(2).stored is None
    ((event, facts),) = running.warnings
    assert event == "cells.not_stored"
    assert facts["why"] == "No space left on device"
    assert "make room" in facts["do"]
    running.folder.full = False
    assert running.stored(3).stored is not None
    running.folder.full = True
    running.stored(4)
    assert len(running.warnings) == 2


def test_a_folder_that_is_gone_for_good_is_a_warning_and_a_miss(running: Store, tmp_path: Path) -> None:
    store = running
    stored = store.stored().stored
    assert stored is not None
    shutil.rmtree(tmp_path / "cells")
    (tmp_path / "cells").write_text("no folder")
    assert store.stored(2).stored is None
    ((_, facts),) = store.warnings
    assert "may write to cache_dir" in facts["do"]
    store.store.read(stored)
    read = store.outcomes.get(timeout=PATIENCE_S)
    assert isinstance(read, CellsRead)
    assert read.contents is None


def test_what_is_removed_is_gone_before_the_next_outcome(running: Store, tmp_path: Path) -> None:
    stored = running.stored(1).stored
    assert stored is not None
    running.store.remove(stored)
    running.stored(2)
    assert stored.name not in {file.name for file in (tmp_path / "cells").iterdir()}


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1 << 20, False)])
def test_cells_have_to_fit_the_folder_with_their_head(
    tmp_path: Path,
    size: int,
    fits: bool,
) -> None:
    with keepers() as connections:
        folder = CellFolder(tmp_path, (1 << 20) + 2000, b"m" * 16, connections.writer(tmp_path, 1 << 20))
        store = CellStore(folder, [], lambda _: None, lambda *_: None)
        assert store.fits(size) is fits


def test_reading_ahead_ends_with_the_last_piece_and_a_read_does_not_wait_for_all(tmp_path: Path) -> None:
    with keepers() as connections:
        folder = CellFolder(tmp_path, 1 << 22, b"m" * 16, connections.writer(tmp_path, 1 << 22))
        named = in_files(prefix_of(range(300), "1000:\n[]"))
        assert named is not None
        stored = folder.write(Contents(memoryview(bytes(3 << 20)), {}), named).stored
        outcomes: SimpleQueue[CellsRead | CellsStored] = SimpleQueue()
        store = CellStore(folder, [stored], outcomes.put, lambda *_: None, 1 << 22)
        threading.Thread(target=store.run, daemon=True).start()
        pieces = 0
        assert store.read_ahead()
        store.read(stored)
        assert outcomes.get(timeout=PATIENCE_S) is not None
        store.taken()
        while store.read_ahead():
            pieces += 1
            store.read(stored)
            outcomes.get(timeout=PATIENCE_S)
            store.taken()
        assert pieces == 4, "three more, because a file has a head, and the end"
