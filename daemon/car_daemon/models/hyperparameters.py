"""The sizes that a model file states of its architecture: whether llama.cpp can count with them."""

from dataclasses import dataclass

from car_daemon.models.cursor import Cursor
from car_daemon.models.gguf import Array, Header, Value
from car_daemon.models.unsound import Reason, refuse

_LAYERS = 512
_F16_BYTES = 2
_F32_BYTES = 4
# The tokens before the last one that RWKV models keep of each layer.
_SHIFTS = 2
# The least and the most of each; llama.cpp's tables have room for so many layers and experts, and it ends its process
# over more.
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
_WITHIN_BLOCKS = ("nextn_predict_layers", "posnet.block_count", "convnext.block_count")
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The keys that begin with the architecture's name."""

    header: Header
    cursor: Cursor
    architecture: str

    def value(self, name: str) -> Value | None:
        """Return one value as it is."""
        return self.header.values.get(f"{self.architecture}.{name}")

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a whole number, or those of an array, one for each layer; empty where there are none."""
        value = self.value(name)
        if value is None:
            return ()
        numbers = self._read(value) if isinstance(value, Array) else (value,)
        wholes = tuple(number for number in numbers if type(number) is int)
        refuse(Reason.HYPERPARAMETER, when=not wholes or len(wholes) < len(numbers))
        return wholes

    def _read(self, array: Array) -> tuple[int | float, ...]:
        refuse(Reason.HYPERPARAMETER, when=array.code == "s" or array.count > _LAYERS)
        self.cursor.go_to(array.start)
        return self.cursor.numbers(array.code, array.count)

    def most(self, name: str) -> int:
        """Return the largest of the numbers, 0 where there are none."""
        return max(self.numbers(name), default=0)

    def kv_bytes_per_token(self) -> int:
        """Return what one token takes in a KV cache of 16 bits, 0 where no layer attends."""
        heads = self.most("attention.head_count")
        if not heads:
            return 0
        shared = self.numbers("attention.head_count_kv") or self.numbers("attention.head_count")
        rows = sum(_for_each(shared, self.most("block_count")) if len(shared) == 1 else shared)
        width = self.most("embedding_length") // heads
        keys, values = self.most("attention.key_length") or width, self.most("attention.value_length") or width
        return rows * (keys + values) * _F16_BYTES

    def state_bytes(self) -> int:
        """Return about what a sequence's states of 32 bits take, where layers keep any; at most all of them do."""
        inner, state, conv = (self.most(f"ssm.{name}") for name in ("inner_size", "state_size", "conv_kernel"))
        width, head = self.most("embedding_length"), self.most("wkv.head_size")
        scanned = inner * state + max(0, conv - 1) * (inner + 2 * self.most("ssm.group_count") * state)
        shifted = width * (head + _SHIFTS) if head else 0
        convolved = width * max(0, self.most("shortconv.l_cache") - 1)
        return self.most("block_count") * (scanned + shifted + convolved) * _F32_BYTES

    def check(self) -> None:
        """Raise UnsoundModel where a loader could not count with the numbers."""
        for name, (least, most) in _BOUNDS.items():
            refuse(Reason.HYPERPARAMETER, when=not all(least <= number <= most for number in self.numbers(name)))
        for name in _EPSILONS:
            refuse(Reason.HYPERPARAMETER, when=not _is_share(self.value(name)))
        blocks = self.most("block_count")
        refuse(Reason.HYPERPARAMETER, when=any(self.most(name) > blocks for name in _WITHIN_BLOCKS))
        refuse(Reason.ROPE, when=self.value("rope.scaling.type") not in (None, *_ROPE_SCALINGS))
        self._check_heads()
        self._check_experts()

    def _check_heads(self) -> None:
        """Every head of keys serves the same number of heads; only layers without attention have none."""
        heads, shared = self.numbers("attention.head_count"), self.numbers("attention.head_count_kv")
        attends = any(tensor.name.startswith("blk.") and ".attn_q" in tensor.name for tensor in self.header.tensors)
        refuse(Reason.HEADS, when=attends and self.value("block_count") is not None and not any(heads))
        layers = max(len(heads), len(shared))
        if len(heads) in (1, layers) and len(shared) in (1, layers):
            pairs = zip(_for_each(heads, layers), _for_each(shared, layers), strict=True)
            refuse(Reason.HEADS, when=any(few > 0 and many % few for many, few in pairs))

    def _check_experts(self) -> None:
        experts, used = self.most("expert_count"), self.most("expert_used_count")
        groups, chosen = self.most("expert_group_count"), self.most("expert_group_used_count")
        if experts <= 1 and self.architecture.startswith("hunyuan"):
            # Its dense models are written as if they had one expert.
            return
        refuse(Reason.EXPERTS, when=used > experts or (used == 0) != (experts == 0))
        refuse(Reason.EXPERTS, when=groups > 0 and groups >= experts)
        refuse(Reason.EXPERTS, when=groups > 1 and (experts % groups != 0 or not 0 < chosen < groups))


def _is_share(value: Value | None) -> bool:
    return value is None or (isinstance(value, float) and 0 <= value <= 1)


def _for_each(numbers: tuple[int, ...], layers: int) -> tuple[int, ...]:
    return numbers * layers if len(numbers) == 1 else numbers
