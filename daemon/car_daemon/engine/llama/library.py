"""Handles to llama.cpp's functions that keep the GIL, for calls of microseconds."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as binding

# The log callback that discards every line.
log_nothing = binding.llama_log_callback(lambda _level, _text, _user_data: None)
_keeps_gil = ctypes.PyDLL(binding._lib._name)


def library_build() -> str:
    """Return the version of the binding, which pins that of llama.cpp, and the CPU features that it names."""
    return f"{llama_cpp.__version__} {binding.llama_print_system_info().decode()}"


def finds_gpus() -> bool:
    """Return whether llama.cpp may compute on a GPU, also where all layers are on the CPU."""
    return bool(binding.llama_supports_gpu_offload())


def quick(name: str) -> Any:
    """Return a function like the binding's own, called without dropping the GIL.

    Dropping it costs up to a switch interval (5 ms) when another thread is busy.
    """
    function = getattr(_keeps_gil, name)
    declared = getattr(binding._lib, name)
    function.argtypes = declared.argtypes
    function.restype = declared.restype
    return function


def silence() -> None:
    """Discard llama.cpp's log: facts travel in frames, and its lines may quote file contents."""
    binding.llama_log_set(log_nothing, ctypes.c_void_p(0))


@contextlib.contextmanager
def quoted_after(phrase: bytes) -> Iterator[list[str]]:
    """Collect the words in single quotes that llama.cpp logs right after a phrase; drop its other lines."""
    found: list[str] = []

    def read(_level: int, text: bytes, _user_data: object) -> None:
        _, _, rest = text.partition(phrase + b" '")
        if rest:
            found.append(rest.partition(b"'")[0].decode(errors="replace"))

    callback = binding.llama_log_callback(read)
    binding.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield found
    finally:
        silence()


def pointer(array: Any, kind: Any) -> Any:
    """Return the address of a numpy array as a pointer to elements of a kind."""
    return array.ctypes.data_as(ctypes.POINTER(kind))
