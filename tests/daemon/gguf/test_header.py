"""Headers as they are read."""

import io
import struct

import pytest

from car_daemon.gguf.header import Array, BoundedReader, Header, TensorInfo, read_header
from car_daemon.gguf.invalid import Flaw, InvalidModel
from tests.daemon.gguf.files import F32, U8, Gguf, numbers, plain_values, string, strings, tensor, text


def reader(data: bytes) -> BoundedReader:
    return BoundedReader(io.BytesIO(data), len(data))


def read(file: Gguf) -> Header:
    return read_header(reader(file.bytes()))


def test_values_come_as_they_are() -> None:
    some: dict[str | bytes, bytes] = {
        "a.text": text("väl"),
        "a.truth": struct.pack("<IB", 7, 1),
        "a.float": struct.pack("<Id", 12, 0.5),
        "a.whole": struct.pack("<Iq", 11, -3),
    }
    values = read(Gguf(values=some)).values
    assert values == {"a.text": "väl", "a.truth": True, "a.float": 0.5, "a.whole": -3}


def test_tensors_come_in_their_order() -> None:
    header = read(Gguf())
    assert header.tensors == (
        TensorInfo("token_embd.weight", (32, 4), 0, 0),
        TensorInfo("output.weight", (32, 4), 0, 512),
    )
    assert header.end == len(Gguf().header())


def test_of_an_array_only_its_place_is_kept() -> None:
    file = Gguf(values={"a": numbers(F32, 1, 2), "b": strings("x", "yz"), "c": numbers(U8)})
    data = file.bytes()
    values = read(file).values
    a, b, c = values["a"], values["b"], values["c"]
    assert isinstance(a, Array)
    assert isinstance(b, Array)
    assert (a.code, a.count, data[a.start : a.start + 8]) == ("f", 2, struct.pack("<ff", 1, 2))
    assert (b.code, b.count, data[b.start : b.start + 9]) == ("s", 2, string("x"))
    assert isinstance(c, Array)
    assert c.count == 0


def test_a_text_that_is_asked_for_is_cut_later() -> None:
    file = Gguf(values={"long": text("x" * 300_000), "other": text("y" * 2000), "next": text("z")})
    values = read_header(reader(file.bytes()), {"long": 200_000}).values
    assert values == {"long": "x" * 200_000, "other": "y" * 1024, "next": "z"}


def test_a_text_is_cut_and_what_follows_it_is_read() -> None:
    values = read(Gguf(values={"long": text("x" * 300_000), "next": text("y")})).values
    assert values == {"long": "x" * 1024, "next": "y"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert read(Gguf(values={"a": text(b"\xff")})).values == {"a": "\ufffd"}


def test_version_2_is_read_like_version_3() -> None:
    assert read(Gguf(version=struct.pack("<I", 2))) == read(Gguf())


def test_strings_longer_than_a_window_are_passed_over() -> None:
    words = ["x" * 200_000, "", "y" * 300_000, "z"]
    file = Gguf(values={"a": strings(*words), "b": text("end")})
    assert read(file).values["b"] == "end"


def test_strings_come_back_whole_across_windows() -> None:
    words = [f"{number}".encode() * (number % 40) for number in range(20_000)]
    file = reader(b"".join(map(string, words)))
    assert [word for some in file.strings(len(words)) for word in some] == words


def test_a_string_that_fills_more_than_a_window_is_too_large() -> None:
    with pytest.raises(InvalidModel) as refused:
        list(reader(string(bytes(1 << 19))).strings(1))
    assert refused.value.reason is Flaw.TOO_LARGE


def test_a_file_that_shrinks_while_it_is_read_is_cut_short() -> None:
    data = Gguf().bytes()
    with pytest.raises(InvalidModel) as refused:
        read_header(BoundedReader(io.BytesIO(data[:100]), len(data)))
    assert refused.value.reason is Flaw.CUT_SHORT


@pytest.mark.parametrize("size", range(0, len(Gguf().header()), 7))
def test_every_cut_of_a_header_is_refused(size: int) -> None:
    with pytest.raises(InvalidModel):
        read_header(reader(Gguf().header()[:size]))


def test_many_strings_are_too_large_before_they_are_read() -> None:
    count = (1 << 22) + 1
    array = struct.pack("<IIQ", 9, 8, count) + bytes(8 * count)
    file = reader(Gguf(values={"a": array}).bytes())
    with pytest.raises(InvalidModel) as refused:
        read_header(file)
    assert refused.value.reason is Flaw.TOO_LARGE
    assert file.position < 1024


def test_many_keys_and_tensors_are_too_large() -> None:
    for file in (
        Gguf(key_count=20_000, data=bytes(1 << 20)),
        Gguf(tensors=[tensor("a", (32,))], tensor_count=70_000, data=bytes(1 << 22)),
    ):
        with pytest.raises(InvalidModel) as refused:
            read(file)
        assert refused.value.reason is Flaw.TOO_LARGE


def test_an_empty_header_is_read() -> None:
    assert read(Gguf(values={}, tensors=[])).values == {}
    assert set(read(Gguf()).values) == set(plain_values())
