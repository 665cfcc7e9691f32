"""Handles to llama.cpp's functions that keep the GIL, for calls of microseconds."""

import contextlib
import ctypes
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from llama_cpp import llama_cpp as binding

# The log callback that discards every line.
log_nothing = binding.llama_log_callback(lambda _level, _text, _user_data: None)
# ggml's number for the level of errors, and the most of them that are kept.
_ERROR = 4
_MOST_ERRORS = 100
# Found before the engine is confined.
_VERSION = version("llama_cpp_python")
_keeps_gil = ctypes.PyDLL(binding._lib._name)


def library_build() -> str:
    """Return the version of the binding, which pins that of llama.cpp, and the CPU features that it names."""
    return f"{_VERSION} {binding.llama_print_system_info().decode()}"


def finds_gpus() -> bool:
    """Return whether llama.cpp may compute on a GPU, also if all layers are on the CPU."""
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


_get_name = _keeps_gil.ggml_get_name  # of a library that llama.cpp's own one links
_get_name.argtypes, _get_name.restype = [ctypes.c_void_p], ctypes.c_char_p


def node_name(node: int) -> bytes:
    """Return the name of a node of a graph, by its address."""
    name: bytes = _get_name(node)
    return name


def silence() -> None:
    """Discard llama.cpp's log: facts travel in frames, and its lines may quote file contents."""
    binding.llama_log_set(log_nothing, ctypes.c_void_p(0))


@contextlib.contextmanager
def errors() -> Iterator[list[str]]:
    """Collect the errors that llama.cpp logs, for the reason of a failure; its lines go to the former place, too."""
    found: list[str] = []
    before, user_data = binding.llama_log_callback(), ctypes.c_void_p()
    binding.llama_log_get(ctypes.byref(before), ctypes.byref(user_data))

    def read(level: int, text: bytes, _user_data: object) -> None:
        if level == _ERROR and len(found) < _MOST_ERRORS:
            found.append(text.decode(errors="replace"))
        before(level, text, user_data)

    callback = binding.llama_log_callback(read)
    binding.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield found
    finally:
        binding.llama_log_set(before, user_data)


def is_about(logged: list[str], *phrases: str) -> bool:
    """Return whether an error has one of these phrases."""
    return any(phrase in line for line in logged for phrase in phrases)


def pointer(array: Any, kind: Any) -> Any:
    """Return the address of a numpy array as a pointer to elements of a kind."""
    return array.ctypes.data_as(ctypes.POINTER(kind))
