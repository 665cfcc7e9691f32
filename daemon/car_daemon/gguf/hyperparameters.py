"""The sizes that a model file declares for its architecture, their bounds, and the tables of its vocabulary."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from car_daemon.gguf.header import Array, BoundedReader, Header, Value
from car_daemon.gguf.invalid import Flaw, InvalidModel, refuse
from car_protocol.models import MemoryKind

_LAYERS = 512
_F32_BYTES = 4
# The tokens before the last one that RWKV models keep of each layer.
_SHIFTS = 2
# The least and the most of each; llama.cpp aborts with more layers or experts than its tables have places.
_BOUNDS = {
    "context_length": (1, (1 << 31) - 1),
    "embedding_length": (1, 1 << 20),
    "block_count": (1, _LAYERS),
    "feed_forward_length": (0, 1 << 24),
    "vocab_size": (1, 1 << 20),
    "attention.head_count": (0, 1 << 16),
    "attention.head_count_kv": (0, 1 << 16),
    "attention.key_length": (0, 1 << 16),
    "attention.value_length": (0, 1 << 16),
    "rope.dimension_count": (0, 1 << 16),
    "ssm.inner_size": (0, 1 << 20),
    "ssm.state_size": (0, 1 << 16),
    "ssm.conv_kernel": (0, 1 << 16),
    "ssm.group_count": (0, 1 << 16),
    "wkv.head_size": (0, 1 << 16),
    "shortconv.l_cache": (0, 1 << 16),
    "expert_count": (0, 1024),
    "expert_used_count": (0, 1024),
    "expert_group_count": (0, 1024),
    "expert_group_used_count": (0, 1024),
}
_EPSILONS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon")
# Architectures that llama.cpp gives sliding windows without the key, and the last tokens that these see.
_WINDOWED = {"exaone4": 4096, "gemma2": 4096, "llama4": 8192}
# Each layer of this number sees all tokens, the layers before it a window, unless the file has a pattern of its own.
# Windows of other architectures count as all tokens.
_PERIODS = {
    "afmoe": 4,
    "cohere2": 4,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma-embedding": 6,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "plamo3": 8,
}
# Where the keys of states begin.
_STATES = ("ssm.", "wkv.", "shortconv.", "kda.")
_WITHIN_BLOCKS = ("nextn_predict_layers", "posnet.block_count", "convnext.block_count")
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


class Attention(NamedTuple):
    """KV heads of each layer, the numbers in one head's key and value, and the tokens that layers see, 0 for all."""

    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The keys that begin with the architecture's name; all methods raise InvalidModel for values of a wrong type."""

    header: Header
    reader: BoundedReader
    architecture: str

    def value(self, name: str) -> Value | None:
        """Return one value unchanged."""
        return self.header.values.get(f"{self.architecture}.{name}")

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return one integer, or an array with an integer for each layer; empty if the key is missing."""
        value = self.value(name)
        if value is None:
            return ()
        numbers: tuple[Value, ...] = (value,)
        if isinstance(value, Array):
            figures = f"{name} is an array of {value.count} values, at most {_LAYERS} numbers are read"
            refuse(Flaw.HYPERPARAMETER, figures, when=value.code == "s" or value.count > _LAYERS)
            self.reader.go_to(value.start)
            numbers = self.reader.numbers(value.code, value.count)
        wholes = tuple(number for number in numbers if type(number) is int)
        refuse(Flaw.HYPERPARAMETER, f"{name} is not an integer", when=not wholes or len(wholes) < len(numbers))
        return wholes

    def most(self, name: str) -> int:
        """Return the largest of the numbers, 0 if there are none."""
        return max(self.numbers(name), default=0)

    def attention(self) -> Attention:
        """Return the sizes of the KV cache's rows; no KV heads if no layer attends."""
        heads = self.most("attention.head_count")
        if not heads:
            return Attention((), 0, 0)
        shared = self.numbers("attention.head_count_kv") or self.numbers("attention.head_count")
        width = self.most("embedding_length") // heads
        keys, values = self.most("attention.key_length") or width, self.most("attention.value_length") or width
        return Attention(_for_each(shared, self.most("block_count")), keys, values, self._windows())

    def _windows(self) -> tuple[int, ...]:
        window = self.most("attention.sliding_window") or _WINDOWED.get(self.architecture, 0)
        pattern, period = self.value("attention.sliding_window_pattern"), _PERIODS.get(self.architecture)
        if isinstance(pattern, Array) and pattern.code == "?" and pattern.count <= _LAYERS:
            self.reader.go_to(pattern.start)
            return tuple(window if windowed else 0 for windowed in self.reader.numbers("?", pattern.count))
        if not window or period is None:
            return ()
        period = pattern if type(pattern) is int and 0 < pattern <= _LAYERS else period
        return tuple(0 if number % period == period - 1 else window for number in range(self.most("block_count")))

    def state_bytes(self) -> int:
        """Return the bytes of a sequence's states in 32-bit floats, as if all layers kept them."""
        inner, state, conv = (self.most(f"ssm.{name}") for name in ("inner_size", "state_size", "conv_kernel"))
        width, head = self.most("embedding_length"), self.most("wkv.head_size")
        scanned = inner * state + max(0, conv - 1) * (inner + 2 * self.most("ssm.group_count") * state)
        shifted = width * (head + _SHIFTS) if head else 0
        convolved = width * max(0, self.most("shortconv.l_cache") - 1)
        return self.most("block_count") * (scanned + shifted + convolved) * _F32_BYTES

    def masks(self) -> int:
        """Return the attention masks of a batch: layers with a sliding window have one beside that of the others."""
        return 2 if self.architecture in _WINDOWED or self.most("attention.sliding_window") else 1

    def memory(self) -> MemoryKind | None:
        """Return what a sequence keeps of its tokens; None for an embedder, which keeps nothing."""
        if self.value("attention.causal") is False:
            return None
        if any(self.value(name) for name in self._names() if name.startswith(_STATES)):
            return "hybrid" if any(self.attention().kv_heads) else "recurrent"
        return "windows" if self.masks() > 1 else "attention"

    def _names(self) -> Iterator[str]:
        own = f"{self.architecture}."
        return (key.removeprefix(own) for key in self.header.values if key.startswith(own))

    def check(self) -> None:
        """Raise InvalidModel if a size is out of its bounds, or two sizes disagree."""
        for name, (least, most) in _BOUNDS.items():
            for number in self.numbers(name):
                figures = f"{name} is {number}, {least} to {most} are allowed"
                refuse(Flaw.HYPERPARAMETER, figures, when=not least <= number <= most)
        for name in _EPSILONS:
            value = self.value(name)
            is_fraction = isinstance(value, float) and 0 <= value <= 1
            figures = f"{name} is not between 0 and 1"
            refuse(Flaw.HYPERPARAMETER, figures, when=value is not None and not is_fraction)
        blocks = self.most("block_count")
        for name in _WITHIN_BLOCKS:
            figures = f"{name} is {self.most(name)}, block_count is {blocks}"
            refuse(Flaw.HYPERPARAMETER, figures, when=self.most(name) > blocks)
        refuse(Flaw.ROPE, when=self.value("rope.scaling.type") not in (None, *_ROPE_SCALINGS))
        self._check_heads()
        self._check_experts()

    def _check_heads(self) -> None:
        """Refuse heads that the heads of keys do not divide, and attention without heads."""
        heads, shared = self.numbers("attention.head_count"), self.numbers("attention.head_count_kv")
        attends = any(tensor.name.startswith("blk.") and ".attn_q" in tensor.name for tensor in self.header.tensors)
        refuse(Flaw.HEADS, when=attends and self.value("block_count") is not None and not any(heads))
        layers = max(len(heads), len(shared))
        if len(heads) in (1, layers) and len(shared) in (1, layers):
            for many, few in zip(_for_each(heads, layers), _for_each(shared, layers), strict=True):
                refuse(Flaw.HEADS, f"{many} heads, {few} of keys", when=few > 0 and many % few != 0)

    def _check_experts(self) -> None:
        experts, used = self.most("expert_count"), self.most("expert_used_count")
        groups, chosen = self.most("expert_group_count"), self.most("expert_group_used_count")
        if experts <= 1 and self.architecture.startswith("hunyuan"):
            # Because dense models of this family declare one expert.
            return
        figures = f"{used} of {experts} used, in {chosen} of {groups} groups"
        refuse(Flaw.EXPERTS, figures, when=used > experts or (used == 0) != (experts == 0))
        refuse(Flaw.EXPERTS, figures, when=groups > 0 and groups >= experts)
        refuse(Flaw.EXPERTS, figures, when=groups > 1 and (experts % groups != 0 or not 0 < chosen < groups))


def _for_each(numbers: tuple[int, ...], layers: int) -> tuple[int, ...]:
    return numbers * layers if len(numbers) == 1 else numbers


_PREFIX = "tokenizer.ggml."
_TOKENS = 1 << 20
# The types of the arrays as `struct` codes or "s", because llama.cpp reads other types as if they were these.
_CODES = {"tokens": "s", "merges": "s", "scores": "fi", "token_type": "iI", "precompiled_charsmap": "bB"}
_FOR_EACH_TOKEN = ("scores", "token_type")
# Padding, separators and the like are left out, because published models name some that they lack, and they are unused.
_SPECIAL = ("bos", "eos", "eot", "eom", "unknown")
_NONE = (-1, 0xFFFF_FFFF)
_WITHOUT_TOKENS = ("none", "no_vocab")
# llama.cpp aborts if the first kind of tokenizer lacks the token of a byte, and if the second kind has one.
_SPELLS_BYTES, _SPELLS_NO_BYTES = "llama", "bert"
_BYTE_TYPE = 6


def check_vocabulary(header: Header, reader: BoundedReader) -> int | None:
    """Return the number of tokens, None if the file has no vocabulary; raises InvalidModel."""
    model = header.values.get(_PREFIX + "model")
    refuse(Flaw.NO_VOCABULARY, when=model in _WITHOUT_TOKENS)
    arrays: dict[str, Array | None] = {}
    for name, codes in _CODES.items():
        value = header.values.get(_PREFIX + name)
        if value is not None and not (isinstance(value, Array) and value.code in codes):
            raise InvalidModel(Flaw.TOKENIZER)
        arrays[name] = value
    tokens = arrays["tokens"]
    if tokens is None:
        return None
    large = f"it has {tokens.count} tokens, at most {_TOKENS} are read"
    refuse(Flaw.TOO_LARGE, large, when=tokens.count > _TOKENS)
    tables = [arrays[name] for name in _FOR_EACH_TOKEN]
    refuse(Flaw.TOKENIZER, when=any(table is not None and table.count < tokens.count for table in tables))
    for name in _SPECIAL:
        token = header.values.get(f"{_PREFIX}{name}_token_id")
        if token is not None and token not in _NONE:
            figures = f"it is {token} of {tokens.count}" if type(token) is int else None
            refuse(Flaw.SPECIAL, figures, when=type(token) is not int or not 0 <= token < tokens.count)
    seen = _check_distinct(tokens, reader)
    if model == _SPELLS_BYTES:
        # Every byte has a token, by its number or as itself.
        spelled = (hash(b"<0x%02X>" % byte) in seen or hash(bytes([byte])) in seen for byte in range(256))
        refuse(Flaw.BYTES, when=not all(spelled))
    types = arrays["token_type"]
    if model == _SPELLS_NO_BYTES and types is not None:
        reader.go_to(types.start)
        refuse(Flaw.TOKENIZER, when=_BYTE_TYPE in reader.numbers(types.code, tokens.count))
    return tokens.count


def _check_distinct(tokens: Array, reader: BoundedReader) -> set[int]:
    """Return the hashes of all texts; raises InvalidModel for two equal tokens.

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
    refuse(Flaw.SAME_TEXT, when=len(seen) + empty < tokens.count)
    return seen
