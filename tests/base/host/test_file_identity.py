"""The identity of a file changes with its content, its place and its time."""

import os
from pathlib import Path

import pytest

from car_base.host.files import NotReadable, OpenedFiles, content_of, identify, with_parts

LARGE = bytes(100_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of which the middle is not hashed."""
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    return path


def overwrite(file: Path, at: int) -> None:
    """Change one byte, and nothing of the times."""
    times = file.stat()
    with file.open("r+b") as content:
        content.seek(at)
        content.write(b"x")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_file_that_is_left_alone_stays_the_same(file: Path) -> None:
    assert identify(file) == identify(file)


@pytest.mark.parametrize("at", [0, 16_000, len(LARGE) - 16_000, len(LARGE) - 1])
def test_another_head_or_tail_is_another_content_whatever_the_time_says(file: Path, at: int) -> None:
    before = identify(file)
    overwrite(file, at)
    after = identify(file)
    assert before is not None
    assert after is not None
    assert after != before
    assert (after.place, after.modified_ns, after.size) == (before.place, before.modified_ns, before.size)


def test_a_new_time_and_a_new_size_are_another_content(file: Path) -> None:
    before = identify(file)
    os.utime(file, ns=(1, 1))
    assert identify(file) != before
    before = identify(file)
    os.truncate(file, 99_999)
    assert identify(file) != before


def test_a_copy_in_its_place_is_another_file(file: Path, tmp_path: Path) -> None:
    before = identify(file)
    (tmp_path / "copy").write_bytes(LARGE)
    os.replace(tmp_path / "copy", file)
    after = identify(file)
    assert before is not None
    assert after is not None
    assert after.place != before.place


@pytest.mark.parametrize("path", ["missing", ".", "pipe", "a\0b"])
def test_what_cannot_be_read_has_no_identity(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert identify(tmp_path / path) is None


def test_an_empty_file_has_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert identify(tmp_path / "empty") is not None


def test_a_copy_has_the_same_content_and_another_size_or_beginning_another(tmp_path: Path) -> None:
    first, copy, longer, other = (tmp_path / name for name in "abcd")
    first.write_bytes(b"header" + bytes(100))
    copy.write_bytes(first.read_bytes())
    longer.write_bytes(first.read_bytes() + b"\0")
    other.write_bytes(b"Header" + bytes(100))
    assert content_of([first]) == content_of([copy])
    assert len({content_of([each]) for each in (first, longer, other)}) == 3
    assert content_of([first, other]) != content_of([first, longer])


def test_a_later_part_counts(tmp_path: Path) -> None:
    paths = list(with_parts(tmp_path / "m-00001-of-00003.gguf"))
    assert [path.name for path in paths] == [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for name in ("m.gguf", "m-00001-of-99999.gguf"):
        assert list(with_parts(tmp_path / name)) == [tmp_path / name]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotReadable, match=r"none\.gguf: No such file or directory"):
        content_of([tmp_path / "none.gguf"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotReadable, match=r"pipe: .*not a regular file"):
        content_of([tmp_path / "pipe"])


def test_a_file_that_was_overwritten_since_it_was_opened_is_noticed_and_a_replaced_one_is_not(tmp_path: Path) -> None:
    path, other = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    for each in (path, other):
        each.write_bytes(b"weights")
        os.utime(each, ns=(1, 1))
    opened = OpenedFiles(path)
    assert not opened.overwritten
    path.with_name("new").write_bytes(b"others")
    os.replace(path.with_name("new"), path)
    assert not opened.overwritten
    other.write_bytes(b"others!")
    assert opened.overwritten
    other.unlink()
    assert not opened.overwritten
