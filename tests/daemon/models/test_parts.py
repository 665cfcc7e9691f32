"""The check of a whole model, also of one in several files."""

import struct
from pathlib import Path

import pytest

from car_daemon.models.parts import check_model
from car_daemon.models.unsound import UnsoundModel
from tests.daemon.models.files import Gguf, model

U16 = 2


def u16(number: int) -> bytes:
    return struct.pack("<IH", U16, number)


def write_parts(folder: Path, second: Gguf) -> Path:
    """Write a model of two files; return the first one's path."""
    second.write(folder / "m-00002-of-00002.gguf")
    return model(split__count=u16(2)).write(folder / "m-00001-of-00002.gguf")


def later_part() -> Gguf:
    return Gguf(values={"split.no": u16(1), "split.count": u16(2)})


def test_a_model_in_one_file_is_looked_at(tmp_path: Path) -> None:
    check_model(model().write(tmp_path / "m.gguf"))
    with pytest.raises(UnsoundModel, match="outside the file"):
        check_model(Gguf(data=b"").write(tmp_path / "short.gguf"))


def test_all_files_of_a_split_model_are_looked_at(tmp_path: Path) -> None:
    check_model(write_parts(tmp_path, later_part()))
    broken = later_part()
    broken.version = bytes(4)
    with pytest.raises(UnsoundModel, match="version"):
        check_model(write_parts(tmp_path, broken))


def test_a_split_model_without_one_of_its_files_is_unsound(tmp_path: Path) -> None:
    first = write_parts(tmp_path, later_part())
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(UnsoundModel, match="cannot be read"):
        check_model(first)
