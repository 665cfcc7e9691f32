"""The vocabulary of a model file: whether its tables belong together."""

from car_daemon.models.cursor import Cursor
from car_daemon.models.gguf import Array, Header, Value
from car_daemon.models.unsound import Reason, UnsoundModel, refuse

_PREFIX = "tokenizer.ggml."
_TOKENS = 1 << 20
# What an array has to hold, as `struct` codes or "s"; llama.cpp has read others as if they held it.
_HOLDS = {"tokens": "s", "merges": "s", "scores": "fi", "token_type": "iI", "precompiled_charsmap": "bB"}
_FOR_EACH_TOKEN = ("scores", "token_type")
# Padding, separators and the like are left out: published models name some that they do not have, and nothing uses
# them.
_SPECIAL = ("bos", "eos", "eot", "eom", "unknown")
_NONE = (-1, 0xFFFF_FFFF)
_WITHOUT_TOKENS = ("none", "no_vocab")
# The first kind of tokenizer ends the process over a byte that is no token, the second over a token that is a byte.
_SPELLS_BYTES, _SPELLS_NO_BYTES = "llama", "bert"
_BYTE_TYPE = 6


def check_vocabulary(header: Header, cursor: Cursor) -> int | None:
    """Return how many tokens there are, None where the file has none; raises UnsoundModel."""
    model = header.values.get(_PREFIX + "model")
    refuse(Reason.NO_VOCABULARY, when=model in _WITHOUT_TOKENS)
    arrays = {name: _array(header, name, codes) for name, codes in _HOLDS.items()}
    tokens = arrays["tokens"]
    if tokens is None:
        return None
    refuse(Reason.TOO_LARGE, when=tokens.count > _TOKENS)
    tables = [arrays[name] for name in _FOR_EACH_TOKEN]
    refuse(Reason.TOKENIZER, when=any(table is not None and table.count < tokens.count for table in tables))
    for name in _SPECIAL:
        _check_special(header.values.get(f"{_PREFIX}{name}_token_id"), tokens.count)
    seen = _check_distinct(tokens, cursor)
    refuse(Reason.BYTES, when=model == _SPELLS_BYTES and not all(_is_spelled(byte, seen) for byte in range(256)))
    if model == _SPELLS_NO_BYTES:
        _check_without_bytes(arrays["token_type"], tokens.count, cursor)
    return tokens.count


def _array(header: Header, name: str, codes: str) -> Array | None:
    value = header.values.get(_PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, Array) or value.code not in codes:
        raise UnsoundModel(Reason.TOKENIZER)
    return value


def _check_special(token: Value | None, count: int) -> None:
    if token is not None and token not in _NONE:
        refuse(Reason.SPECIAL, when=type(token) is not int or not 0 <= token < count)


def _check_distinct(tokens: Array, cursor: Cursor) -> set[int]:
    """Return the hashes of all texts; refuse two of the same.

    A text is what llama.cpp reads, to the first zero byte; any number may be empty.
    """
    cursor.go_to(tokens.start)
    # Hashes take little memory whatever the texts; two of a million texts share one once in a billion files.
    seen: set[int] = set()
    empty = 0
    for words in cursor.strings(tokens.count):
        texts = [word.partition(b"\0")[0] if 0 in word else word for word in words]
        empty += texts.count(b"")
        seen.update(map(hash, texts))
    seen.discard(hash(b""))
    refuse(Reason.SAME_TEXT, when=len(seen) + empty < tokens.count)
    return seen


def _check_without_bytes(types: Array | None, count: int, cursor: Cursor) -> None:
    if types is not None:
        cursor.go_to(types.start)
        refuse(Reason.TOKENIZER, when=_BYTE_TYPE in cursor.numbers(types.code, count))


def _is_spelled(byte: int, seen: set[int]) -> bool:
    """Tell whether a byte is a token, by its number or as it is."""
    return hash(b"<0x%02X>" % byte) in seen or hash(bytes([byte])) in seen
