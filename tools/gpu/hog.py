"""A process that takes a GPU's memory: `python -m tools.gpu.hog LEFT` leaves LEFT bytes until its input ends.

`python -m tools.gpu.hog` prints the free and the total bytes of the first GPU, or nothing where ggml finds none.
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llama_cpp import llama_cpp

# The largest single allocation; a driver may refuse the rest of a device in one piece.
_PIECE = 1 << 30
# ggml's number for devices with memory of their own.
_OWN_MEMORY = 1


def main() -> None:
    """Print the memory of the first GPU, and take it where a number of bytes is given."""
    ggml = library()
    device = find(ggml)
    if device is None:
        return
    if len(sys.argv) > 1:
        fill(lambda: memory_of(ggml, device)[0], lambda size: take(ggml, device, size), int(sys.argv[1]))
    print(*memory_of(ggml, device), flush=True)
    if len(sys.argv) > 1:
        sys.stdin.read()


def fill(free: Callable[[], int], take: Callable[[int], None], left: int) -> None:
    """Take memory until this much of it is left; raises MemoryError where the device reports as much free as before."""
    while (over := (before := free()) - left) > 0:
        take(min(over, _PIECE))
        if free() >= before:
            raise MemoryError(f"{before} bytes are free as before: this backend counts no memory that is not written")


def library() -> ctypes.CDLL:
    """Return ggml with its backends loaded."""
    llama_cpp.llama_backend_init()
    return ctypes.CDLL(llama_cpp._lib._name)


def find(ggml: ctypes.CDLL, kind: int = _OWN_MEMORY) -> ctypes.c_void_p | None:
    """Return the first device of a kind; None without any."""
    by_type = ggml.ggml_backend_dev_by_type
    by_type.argtypes, by_type.restype = [ctypes.c_int], ctypes.c_void_p
    found = by_type(kind)
    return ctypes.c_void_p(found) if found else None


def memory_of(ggml: ctypes.CDLL, device: ctypes.c_void_p) -> tuple[int, int]:
    """Return the free and the total bytes of a device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def take(ggml: ctypes.CDLL, device: ctypes.c_void_p, size: int) -> None:
    """Allocate a buffer, which the device frees with the process; raises MemoryError."""
    kind, buffer = ggml.ggml_backend_dev_buffer_type, ggml.ggml_backend_buft_alloc_buffer
    kind.argtypes, kind.restype = [ctypes.c_void_p], ctypes.c_void_p
    buffer.argtypes, buffer.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    if not buffer(kind(device), size):
        raise MemoryError(f"the device has no room for {size} bytes, which it reports as free")


def device_memory() -> tuple[int, int] | None:
    """Return the free and the total bytes of the first GPU; None if there is none."""
    done = subprocess.run([sys.executable, "-m", "tools.gpu.hog"], check=True, capture_output=True, text=True)
    found = done.stdout.split()
    return (int(found[0]), int(found[1])) if found else None


@contextmanager
def memory_taken(left: int) -> Iterator[None]:
    """Leave this many bytes of the first GPU for the length of a block."""
    command = [sys.executable, "-m", "tools.gpu.hog", str(left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("no GPU, or its memory could not be taken")
        yield
        process.stdin.close()


if __name__ == "__main__":
    main()
