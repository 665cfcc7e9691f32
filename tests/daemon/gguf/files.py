"""Writes GGUFs by hand, byte by byte, so that a test can put any fault into one."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
_CODES = {U8: "B", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q"}


def u32(number: int) -> bytes:
    """Return a value of 32 bits after its type."""
    return struct.pack("<II", U32, number)


def string(text: str | bytes) -> bytes:
    """Return a string after its length."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def text(value: str | bytes) -> bytes:
    """Return a string value after its type."""
    return struct.pack("<I", STRING) + string(value)


def strings(*values: str | bytes) -> bytes:
    """Return an array of strings after its types."""
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(string, values))


def numbers(type: int, *values: float) -> bytes:
    """Return an array of numbers after its types."""
    return struct.pack(f"<IIQ{len(values)}{_CODES[type]}", ARRAY, type, len(values), *values)


def tensor(name: str | bytes, shape: Sequence[int], type: int = 0, offset: int = 0) -> bytes:
    """Return one tensor as a header declares it."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


def plain_values() -> dict[str | bytes, bytes]:
    """Return the values of a small, valid model."""
    return {
        "general.architecture": text("llama"),
        "general.name": text("by hand"),
        "llama.context_length": u32(64),
        "llama.embedding_length": u32(32),
        "llama.block_count": u32(2),
        "llama.attention.head_count": u32(4),
        "llama.attention.head_count_kv": u32(2),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.tokens": strings("<unk>", "<s>", "</s>", "a"),
        "tokenizer.ggml.scores": numbers(F32, 0, 0, 0, -1),
        "tokenizer.ggml.token_type": numbers(I32, 2, 3, 3, 1),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
    }


def plain_tensors() -> list[bytes]:
    """Return two tensors of 512 bytes, side by side."""
    return [tensor("token_embd.weight", (32, 4)), tensor("output.weight", (32, 4), offset=512)]


@dataclass
class Gguf:
    """The parts of a file; without explicit counts those of its keys and tensors are written."""

    values: dict[str | bytes, bytes] = field(default_factory=plain_values)
    tensors: list[bytes] = field(default_factory=plain_tensors)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    key_count: int | None = None
    tensor_count: int | None = None
    repeated: bytes = b""
    data: bytes = bytes(1024)

    def header(self) -> bytes:
        """Return everything before the data."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.values) + bool(self.repeated) if self.key_count is None else self.key_count
        pairs = b"".join(string(key) + value for key, value in self.values.items())
        counts = struct.pack("<QQ", tensors, keys)
        return self.magic + self.version + counts + pairs + self.repeated + b"".join(self.tensors)

    def bytes(self) -> bytes:
        """Return the whole file."""
        header = self.header()
        return header + bytes(-len(header) % 32) + self.data

    def write(self, path: Path) -> Path:
        """Write the file and return where it is."""
        path.write_bytes(self.bytes())
        return path


def model(**values: bytes | None) -> Gguf:
    """Return a valid model with some values changed, or left out where None; `__` stands for a dot."""
    named = {key.replace("__", "."): value for key, value in values.items()}
    kept = {key: value for key, value in plain_values().items() if key not in named}
    return Gguf(values=kept | {key: value for key, value in named.items() if value is not None})
