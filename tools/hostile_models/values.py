"""Keys of a sound header with values that mean harm: other types, other lengths, numbers out of any range."""

import struct
from collections.abc import Iterator

_KEYS_AT = 16  # after magic, version and the number of tensors
_PAIRS_AT = 24
_ALIGNMENT = 32
_TYPES = {"H": 2, "i": 5, "I": 4, "f": 6, "?": 7, "b": 1, "q": 11}
_STRING, _ARRAY = 8, 9
_NAN, _INFINITY = float("nan"), float("inf")
_HIGHEST = 2**32 - 1


def with_value(data: bytes, key: str, value: bytes) -> bytes:
    """Return a model with another value of a key, which comes first; spaces keep its weights aligned."""
    name = _string(key)
    data = data.replace(name, name[:-1] + b"_", 1)
    pair, pad = name + value, _string("card.padding")
    spaces = -(len(pair) + len(pad) + len(text(""))) % _ALIGNMENT
    (keys,) = struct.unpack_from("<Q", data, _KEYS_AT)
    count = struct.pack("<Q", keys + 2)
    return data[:_KEYS_AT] + count + pair + pad + text(" " * spaces) + data[_PAIRS_AT:]


def text(value: str | bytes) -> bytes:
    """Return a string with its type."""
    return struct.pack("<I", _STRING) + _string(value)


def number(code: str, value: float) -> bytes:
    """Return a number of a `struct` code with its type."""
    return struct.pack(f"<I{code}", _TYPES[code], value)


def numbers(code: str, values: list[float]) -> bytes:
    """Return an array of numbers with its types."""
    return struct.pack(f"<IIQ{len(values)}{code}", _ARRAY, _TYPES[code], len(values), *values)


def texts(values: list[str | bytes]) -> bytes:
    """Return an array of strings with its types."""
    return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_string, values))


def nested(depth: int) -> bytes:
    """Return arrays in arrays."""
    return struct.pack("<I", _ARRAY) + struct.pack("<IQ", _ARRAY, 1) * depth


def _string(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


_FLOATS = (_NAN, _INFINITY, 0.0, -1.0)
_FLOAT_KEYS = (
    *("rope.freq_base", "rope.scaling.factor", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
    *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "residual_scale", "embedding_scale"),
    *("attention.max_alibi_bias", "attention.clamp_kqv", "attention.scale"),
)
_SIZES = (0, 1, 3, 7, 65_536, _HIGHEST)
_SIZE_KEYS = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "pooling_type"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "rope.scaling.original_context_length", "attention.sliding_window"),
    *("expert_count", "leading_dense_block_count", "nextn_predict_layers"),
    *("ssm.inner_size", "ssm.state_size", "ssm.conv_kernel", "ssm.time_step_rank", "ssm.group_count"),
)
_TOKENIZERS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "none", "\x1b[31m")
_TOKENIZER = "tokenizer.ggml."
_OTHERS = {
    "general.alignment": [number("I", 0), number("I", 1 << 31), number("q", -32)],
    "general.name": [text('\x1b]0;name\x07\n"},{'), numbers("b", [0] * 9), nested(9), nested(4096)],
    "general.type": [text("adapter"), text("mmproj")],
    "general.quantization_version": [number("I", 99)],
    "split.count": [number("H", 60_000)],
    f"{_TOKENIZER}pre": [text("x" * 2000), text("\n")],
    f"{_TOKENIZER}merges": [texts(["", " ", " a", "a ", "a b c", "none"] * 99), texts([b"\0 \0", b"\xff \xfe"])],
    f"{_TOKENIZER}precompiled_charsmap": [numbers("b", [-1] * 64), numbers("b", [4, 0, 0, 0, 1, 2, 3, 4])],
    f"{_TOKENIZER}padding_token_id": [number("I", 1 << 31)],
    f"{_TOKENIZER}fim_pre_token_id": [number("I", _HIGHEST - 1)],
    "tokenizer.chat_template": [text("a" * 5_000_000), text(b"a\0{{ messages }}\xff"), number("I", 1)],
    "tokenizer.chat_template.tool_use": [text("{% for %}")],
}


def hostile_values(architecture: str, tokens: int) -> Iterator[tuple[str, bytes]]:
    """Yield keys with their values, for a model of an architecture with so many tokens."""
    for key in _FLOAT_KEYS:
        yield from ((f"{architecture}.{key}", number("f", value)) for value in _FLOATS)
    for key in _SIZE_KEYS:
        yield from ((f"{architecture}.{key}", number("I", value)) for value in _SIZES)
        yield f"{architecture}.{key}", numbers("I", [1] * 513)
    yield from ((f"{_TOKENIZER}model", text(name)) for name in _TOKENIZERS)
    yield from ((f"{_TOKENIZER}token_type", numbers("i", [value] * tokens)) for value in (-(2**31), 3, 6))
    yield f"{_TOKENIZER}scores", numbers("f", [_NAN] * tokens)
    for key, values in _OTHERS.items():
        yield from ((key, value) for value in values)
