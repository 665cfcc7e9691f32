"""The check of a whole model, also of one in several files, and how often it reads them."""

import struct
from pathlib import Path

import pytest
from msgspec import structs

from car_daemon.gguf.invalid import InvalidModel
from car_daemon.gguf.validation import HeaderFacts
from car_daemon.models.model_files import ModelFiles, check_files, check_model
from car_daemon.models.settings import ModelSettings
from tests.daemon.gguf.files import Gguf, model, text

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
    with pytest.raises(InvalidModel, match="outside the file"):
        check_model(Gguf(data=b"").write(tmp_path / "short.gguf"))


def test_all_files_of_a_split_model_are_looked_at(tmp_path: Path) -> None:
    check_model(write_parts(tmp_path, later_part()))
    broken = later_part()
    broken.version = bytes(4)
    with pytest.raises(InvalidModel, match="version"):
        check_model(write_parts(tmp_path, broken))


def test_a_split_model_without_one_of_its_files_is_unsound(tmp_path: Path) -> None:
    first = write_parts(tmp_path, later_part())
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(InvalidModel, match="cannot be read"):
        check_model(first)


def beside(**values: bytes) -> Gguf:
    """Return a valid file that is not a model."""
    return Gguf(values={key.replace("__", "."): value for key, value in values.items()})


ADAPTER = beside(general__architecture=text("llama"), general__type=text("adapter"), adapter__type=text("lora"))
PROJECTOR = beside(general__architecture=text("clip"))


def settings(folder: Path, *, adapter: Gguf = ADAPTER, projector: Gguf = PROJECTOR) -> ModelSettings:
    """Write a model with both files beside it; return how it is loaded."""
    return ModelSettings(
        model().write(folder / "m.gguf"),
        adapters={"tone": adapter.write(folder / "tone.gguf")},
        projector=projector.write(folder / "eye.gguf"),
    )


def test_the_files_beside_a_model_are_looked_at_too(tmp_path: Path) -> None:
    assert [facts.architecture for facts in check_files(settings(tmp_path))] == ["llama"]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"adapter": Gguf(values=ADAPTER.values, data=b"")}, "the adapter tone: a tensor lies outside the file"),
        ({"adapter": PROJECTOR}, "the adapter tone: the file is not a LoRA adapter"),
        ({"adapter": Gguf(values=ADAPTER.values, magic=b"what")}, "the adapter tone: the file is not a GGUF"),
        ({"adapter": Gguf(values=ADAPTER.values, tensors=[])}, "the adapter tone: the file contains no tensors"),
        ({"projector": ADAPTER}, "the projector: the file is not a projector"),
        ({"projector": beside()}, "the projector: the architecture is not named"),
        ({"projector": Gguf(values=PROJECTOR.values, version=bytes(4))}, "the projector: this GGUF version"),
    ],
)
def test_an_unsound_file_beside_a_model_is_named_by_what_it_was_to_be(
    tmp_path: Path, broken: dict[str, Gguf], why: str
) -> None:
    with pytest.raises(InvalidModel, match=why):
        check_files(settings(tmp_path, **broken))


def test_a_file_beside_a_model_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    missing = structs.replace(settings(tmp_path), projector=tmp_path / "none.gguf")
    with pytest.raises(InvalidModel, match="the projector: the file cannot be read"):
        check_files(missing)


class Reading:
    """Reads files as the daemon does, and counts."""

    def __init__(self) -> None:
        self.times = 0
        self.files = ModelFiles(self.read)

    def read(self, given: ModelSettings) -> list[HeaderFacts]:
        self.times += 1
        return check_files(given)


def test_the_headers_of_a_load_are_read_once(tmp_path: Path) -> None:
    reading, given = Reading(), settings(tmp_path)
    first = reading.files.check(given)
    assert reading.files.check(given) is first
    assert reading.files.check(structs.replace(given, context_tokens=512)) is first
    assert reading.times == 1


@pytest.mark.parametrize("name", ["m", "tone", "eye"])
def test_headers_are_read_again_once_one_of_the_files_changed(tmp_path: Path, name: str) -> None:
    reading, given = Reading(), settings(tmp_path)
    reading.files.check(given)
    (tmp_path / f"{name}.gguf").write_bytes(b"what")
    with pytest.raises(InvalidModel):
        reading.files.check(given)
    assert reading.times == 2


def test_files_in_other_roles_are_read_again(tmp_path: Path) -> None:
    reading, given = Reading(), settings(tmp_path)
    reading.files.check(given)
    with pytest.raises(InvalidModel, match="the projector: the file is not a projector"):
        reading.files.check(structs.replace(given, adapters={}, projector=tmp_path / "tone.gguf"))


def test_files_that_were_refused_are_read_again(tmp_path: Path) -> None:
    reading, missing = Reading(), ModelSettings(tmp_path / "none.gguf")
    for _ in range(2):
        with pytest.raises(InvalidModel):
            reading.files.check(missing)
    assert reading.times == 2
