"""The process that takes a GPU's memory, as far as a machine without a GPU runs it: ggml's calls on its processor."""

import ctypes

import pytest

from tools.gpu.hog import device_memory, fill, find, library, memory_of, memory_taken, take

PROCESSOR = 0
MIB = 1 << 20


def test_memory_is_taken_in_buffers_and_a_refusal_of_the_device_is_an_error() -> None:
    ggml = library()
    processor = find(ggml, PROCESSOR)
    assert isinstance(processor, ctypes.c_void_p)
    free, total = memory_of(ggml, processor)
    assert 0 < free <= total
    take(ggml, processor, 8 * MIB)
    with pytest.raises(MemoryError, match=str(1 << 60)):
        take(ggml, processor, 1 << 60)


def test_memory_is_taken_piece_by_piece_until_as_much_is_left() -> None:
    taken: list[int] = []
    fill(lambda: 2500 * MIB - sum(taken), taken.append, 100 * MIB)
    assert taken == [1024 * MIB, 1024 * MIB, 352 * MIB]
    with pytest.raises(MemoryError, match="are free as before"):
        fill(lambda: 2500 * MIB, taken.append, 100 * MIB)


def test_without_a_gpu_nothing_is_reported_and_nothing_taken() -> None:
    if find(library()) is not None:
        pytest.skip("for machines without a GPU")
    assert device_memory() is None
    with pytest.raises(RuntimeError, match="no GPU"), memory_taken(8 * MIB):
        pytest.fail("the block ran")
