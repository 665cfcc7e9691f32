"""The vocabulary of a model file: its tables, which have to agree."""

from car_daemon.gguf.bounded_reader import BoundedReader
from car_daemon.gguf.header import Array, Header
from car_daemon.gguf.invalid import InvalidModel, Reason, refuse

_PREFIX = "tokenizer.ggml."
_TOKENS = 1 << 20
# The types of the arrays as `struct` codes or "s", because llama.cpp reads other types as if they were these.
_CODES = {"tokens": "s", "merges": "s", "scores": "fi", "token_type": "iI", "precompiled_charsmap": "bB"}
_FOR_EACH_TOKEN = ("scores", "token_type")
# Padding, separators and the like are left out, because published models name some that they lack, and they are unused.
_SPECIAL = ("bos", "eos", "eot", "eom", "unknown")
_NONE = (-1, 0xFFFF_FFFF)
_WITHOUT_TOKENS = ("none", "no_vocab")
# llama.cpp aborts where the first kind of tokenizer lacks the token of a byte, and where the second kind has one.
_SPELLS_BYTES, _SPELLS_NO_BYTES = "llama", "bert"
_BYTE_TYPE = 6


def check_vocabulary(header: Header, reader: BoundedReader) -> int | None:
    """Return the number of tokens, None where the file has no vocabulary; raises InvalidModel."""
    model = header.values.get(_PREFIX + "model")
    refuse(Reason.NO_VOCABULARY, when=model in _WITHOUT_TOKENS)
    arrays: dict[str, Array | None] = {}
    for name, codes in _CODES.items():
        value = header.values.get(_PREFIX + name)
        if value is not None and not (isinstance(value, Array) and value.code in codes):
            raise InvalidModel(Reason.TOKENIZER)
        arrays[name] = value
    tokens = arrays["tokens"]
    if tokens is None:
        return None
    large = f"it has {tokens.count} tokens, at most {_TOKENS} are read"
    refuse(Reason.TOO_LARGE, large, when=tokens.count > _TOKENS)
    tables = [arrays[name] for name in _FOR_EACH_TOKEN]
    refuse(Reason.TOKENIZER, when=any(table is not None and table.count < tokens.count for table in tables))
    for name in _SPECIAL:
        token = header.values.get(f"{_PREFIX}{name}_token_id")
        if token is not None and token not in _NONE:
            figures = f"it is {token} of {tokens.count}" if type(token) is int else None
            refuse(Reason.SPECIAL, figures, when=type(token) is not int or not 0 <= token < tokens.count)
    seen = _check_distinct(tokens, reader)
    if model == _SPELLS_BYTES:
        # Every byte has a token, by its number or as itself.
        spelled = (hash(b"<0x%02X>" % byte) in seen or hash(bytes([byte])) in seen for byte in range(256))
        refuse(Reason.BYTES, when=not all(spelled))
    types = arrays["token_type"]
    if model == _SPELLS_NO_BYTES and types is not None:
        reader.go_to(types.start)
        refuse(Reason.TOKENIZER, when=_BYTE_TYPE in reader.numbers(types.code, tokens.count))
    return tokens.count


def _check_distinct(tokens: Array, reader: BoundedReader) -> set[int]:
    """Return the hashes of all texts; raises InvalidModel for two equal ones.

    llama.cpp reads a text to its first zero byte; any number of texts may be empty.
    """
    reader.go_to(tokens.start)
    # Hashes need little memory for texts of any length; two of a million texts collide once in a billion files.
    seen: set[int] = set()
    empty = 0
    for words in reader.strings(tokens.count):
        texts = [word.partition(b"\0")[0] if 0 in word else word for word in words]
        empty += texts.count(b"")
        seen.update(map(hash, texts))
    seen.discard(hash(b""))
    refuse(Reason.SAME_TEXT, when=len(seen) + empty < tokens.count)
    return seen
