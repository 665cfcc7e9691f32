"""Files of cells are written by the daemon, within the limit of their folder, whatever an engine requests."""

import errno
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from car_base.host.private_folder import PrivateFolder
from car_base.ipc.cell_requests import CellsKept, RemoveCells, WriteCells, decode_kept, line_of
from car_daemon.engines.cell_keeper import CellKeeper
from tests.pace import HANG_S

LIMIT = 10_000


def name_of(number: int, uid: int = 1000) -> str:
    return f"{uid}-{'a' * 32}-{number:032x}.cells"


class Engine:
    """An engine's end of the socket."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.socket = CellKeeper(folder, limit).connect()
        self.socket.settimeout(HANG_S)
        self._replies = self.socket.makefile("rb")

    def reply(self) -> CellsKept:
        """Return the next reply; raises EOFError once the daemon ended the connection."""
        if not (line := self._replies.readline()):
            raise EOFError
        return decode_kept(line)

    def write(self, name: str, size: int = 1000) -> CellsKept:
        """Have a file written."""
        self.socket.sendall(line_of(WriteCells(name, size)) + b"c" * size)
        return self.reply()

    def remove(self, name: str) -> CellsKept:
        """Have a file removed."""
        self.socket.sendall(line_of(RemoveCells(name)))
        return self.reply()

    def age(self, name: str, seconds: float) -> None:
        """Have a file's last use lie further back."""
        before = os.stat(self.folder / name).st_mtime - seconds
        os.utime(self.folder / name, (before, before))

    @property
    def names(self) -> set[str]:
        """The names in the folder."""
        return set(os.listdir(self.folder))

    def close(self) -> None:
        """End, as a process does."""
        self._replies.close()
        self.socket.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts engines on one folder."""
    engines: list[Engine] = []

    def start(limit: int = LIMIT) -> Engine:
        engines.append(Engine(tmp_path / "guide" / "cpu", limit))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
    for thread in threading.enumerate():
        if thread.name == "cells":
            thread.join(HANG_S)


@pytest.fixture
def engine(started: Callable[..., Engine]) -> Engine:
    return started()


def test_folder_and_files_are_private_whatever_the_umask(started: Callable[..., Engine]) -> None:
    before = os.umask(0)
    try:
        engine = started()
        assert engine.write(name_of(1)) == CellsKept()
    finally:
        os.umask(before)
    paths = (engine.folder.parent, engine.folder, engine.folder / name_of(1))
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]
    assert (engine.folder / name_of(1)).read_bytes() == b"c" * 1000


def test_the_least_recently_used_files_make_room(engine: Engine) -> None:
    for number in range(10):
        assert engine.write(name_of(number)).removed == []
        engine.age(name_of(number), 100 - number)
    assert engine.write(name_of(10), 1500).removed == [name_of(0), name_of(1)]
    assert engine.names == {name_of(number) for number in range(2, 11)}


def test_a_user_who_stores_without_end_takes_no_room_from_another(engine: Engine) -> None:
    engine.write(name_of(0))
    engine.age(name_of(0), 1000)
    for number in range(1, 30):
        assert engine.write(name_of(number, uid=1001)).error == 0
    assert len(engine.names) == 10
    assert name_of(0) in engine.names


def test_a_file_as_large_as_the_folder_takes_all_of_it(engine: Engine) -> None:
    engine.write(name_of(1, uid=1000))
    engine.write(name_of(2, uid=1001))
    assert set(engine.write(name_of(3, uid=1002), LIMIT).removed) == {name_of(1, uid=1000), name_of(2, uid=1001)}


def test_a_file_larger_than_the_folder_is_refused_and_takes_no_other_s_room(engine: Engine) -> None:
    engine.write(name_of(1))
    assert engine.write(name_of(2), LIMIT + 1) == CellsKept([], errno.EFBIG)
    assert engine.names == {name_of(1)}


def test_the_same_prefix_again_takes_the_place_of_its_file(engine: Engine) -> None:
    for size in (LIMIT, LIMIT):
        assert engine.write(name_of(1), size) == CellsKept()
    assert engine.names == {name_of(1)}


def test_a_lower_limit_holds_from_the_next_load_on(started: Callable[..., Engine]) -> None:
    engine = started()
    for number, seconds in enumerate((10, 30, 20)):
        engine.write(name_of(number))
        engine.age(name_of(number), seconds)
    assert started(limit=2000).names == {name_of(0), name_of(2)}


def test_no_more_files_are_kept_than_an_engine_has_in_its_index(engine: Engine) -> None:
    for number in range(1000):
        (engine.folder / name_of(number)).touch()
        os.utime(engine.folder / name_of(number), (number, number))
    assert engine.write(name_of(1000)).removed == [name_of(0)]


def test_files_with_other_names_stay_and_take_no_room(engine: Engine) -> None:
    (engine.folder / "notes.txt").write_bytes(b"n" * 2 * LIMIT)
    assert engine.write(name_of(1), LIMIT) == CellsKept()
    assert engine.names == {"notes.txt", name_of(1)}


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON\n",
        b'{"type":"RemoveCells","name":"notes.txt"}\n',
        b'{"type":"RemoveCells","name":"../1000-a-b.cells"}\n',
        b'{"type":"RemoveCells","name":"1000-a-b.cells\\n"}\n',
        b'{"type":"WriteCells","name":"1000-a-b.cells","size":0}\n',
        b'{"type":"WriteCells","name":"1000-a-b.cells","size":-1}\n',
        b'{"type":"WriteCells","name":"1000-%s.cells","size":1}\n' % (b"a" * 300),
        b"x" * 100_000,
    ],
)
def test_a_request_out_of_range_ends_the_connection_and_changes_nothing(engine: Engine, line: bytes) -> None:
    for place in (engine.folder, engine.folder.parent):
        (place / "1000-a-b.cells").write_bytes(b"cells")
    (engine.folder / "notes.txt").write_bytes(b"notes")
    engine.socket.sendall(line)
    with pytest.raises((EOFError, ConnectionError)):
        engine.reply()
    assert engine.names == {"1000-a-b.cells", "notes.txt"}
    assert (engine.folder.parent / "1000-a-b.cells").exists()


def blocks_of(file: int) -> int:
    return os.fstat(file).st_blocks


def test_a_removed_file_frees_its_room_also_while_the_engine_has_it_open(engine: Engine) -> None:
    engine.write(name_of(1), LIMIT)
    file = os.open(engine.folder / name_of(1), os.O_RDONLY)
    try:
        assert blocks_of(file) > 0
        assert engine.write(name_of(2), LIMIT).removed == [name_of(1)]
        assert blocks_of(file) == 0
    finally:
        os.close(file)


def test_a_file_counts_in_full_from_its_first_byte_on(started: Callable[..., Engine]) -> None:
    slow, quick = started(), started()
    slow.socket.sendall(line_of(WriteCells(name_of(1), LIMIT)) + b"c")
    while not slow.names:
        os.sched_yield()
    (draft,) = slow.names
    while (slow.folder / draft).stat().st_size < LIMIT:
        os.sched_yield()
    assert quick.write(name_of(2), LIMIT).removed == [draft]
    slow.socket.sendall(b"c" * (LIMIT - 1))
    assert slow.reply().error == errno.ENOENT
    assert quick.names == {name_of(2)}
    assert slow.write(name_of(3), 10).error == 0, "the connection goes on"


def test_an_engine_that_ends_within_a_file_leaves_nothing(engine: Engine) -> None:
    engine.socket.sendall(line_of(WriteCells(name_of(1), LIMIT)) + b"c" * 5000)
    engine.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        engine.reply()
    assert engine.names == set()


def test_what_a_killed_daemon_left_half_written_goes_first(started: Callable[..., Engine]) -> None:
    engine = started()
    engine.write(name_of(1))
    draft = f"{name_of(2)}.{'0' * 16}"
    (engine.folder / draft).write_bytes(b"c" * (LIMIT - 1000))
    assert engine.write(name_of(3)).removed == [draft]
    assert engine.names == {name_of(1), name_of(3)}
    (engine.folder / draft).write_bytes(b"c" * (LIMIT - 1000))
    started()
    assert engine.names == {name_of(1), name_of(3)}


def test_a_write_that_fails_names_what_was_removed_for_it(started: Callable[..., Engine]) -> None:
    slow, quick = started(), started()
    quick.write(name_of(1))
    slow.socket.sendall(line_of(WriteCells(name_of(2), LIMIT)) + b"c")
    while name_of(1) in slow.names:
        os.sched_yield()
    quick.write(name_of(3), LIMIT)
    slow.socket.sendall(b"c" * (LIMIT - 1))
    assert slow.reply() == CellsKept([name_of(1)], errno.ENOENT)


def test_a_disk_that_takes_no_more_is_an_error_and_leaves_no_draft(engine: Engine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        assert engine.write(name_of(1), 5000).error == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert engine.names == set()
    assert engine.write(name_of(1), 5000).error == 0


def test_a_file_is_removed_once_and_then_is_not_there(engine: Engine) -> None:
    engine.write(name_of(1))
    assert [engine.remove(name_of(1)), engine.remove(name_of(1))] == [CellsKept(), CellsKept()]
    assert engine.names == set()


def test_a_folder_that_is_gone_is_an_error_until_the_next_load(started: Callable[..., Engine]) -> None:
    engine = started()
    engine.folder.rmdir()
    assert engine.write(name_of(1)).error == errno.ENOENT
    assert started().write(name_of(1)) == CellsKept()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_link_of_another_user_in_place_of_the_model_s_folder_is_not_followed(engine: Engine) -> None:
    parent = engine.folder.parent
    os.rename(parent, parent.with_name("elsewhere"))
    parent.symlink_to(parent.with_name("elsewhere"))
    os.lchown(parent, 1001, 1001)
    assert engine.write(name_of(1)).error == errno.EPERM
    assert not os.listdir(parent.with_name("elsewhere") / "cpu")


def test_a_hard_link_to_another_file_costs_the_other_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"text")
    with PrivateFolder(tmp_path / "cells") as folder:
        os.link(other, tmp_path / "cells" / name_of(1))
        folder.discard(name_of(1))
    assert other.read_bytes() == b"text"
    assert not (tmp_path / "cells" / name_of(1)).exists()
