"""Handles to llama.cpp's functions that keep the GIL, for calls of microseconds."""

import ctypes
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as binding

_keeps_gil = ctypes.PyDLL(binding._lib._name)


def library_version() -> str:
    """Return the version of the binding, which pins that of llama.cpp."""
    return str(llama_cpp.__version__)


def quick(name: str) -> Any:
    """Return a function like the binding's own, called without dropping the GIL.

    Dropping it costs up to a switch interval (5 ms) when another thread is busy.
    """
    function = getattr(_keeps_gil, name)
    declared = getattr(binding._lib, name)
    function.argtypes = declared.argtypes
    function.restype = declared.restype
    return function
