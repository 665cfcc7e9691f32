"""The one declaration of capacity: the number of sequences that run at once, and their context."""

from collections.abc import Iterable

from msgspec import Struct

from car_daemon.capacity.curve import Curve
from car_protocol.capacity import Policy

# llama.cpp's own bound on sequences of one context.
MAX_SEQUENCES = 256
_MOST_MEASURED = 32
_MOST_BY_MEMORY = 8
_DEFAULT_CONTEXT = 8192
_LEAST_CONTEXT = 2048
# llama.cpp rounds the cells of a stream up to a multiple of this.
_CELLS = 256
_F16_BYTES = 2
# The KV cache's fraction of the free memory: by policy, and for an explicit figure.
_FRACTION = 0.25
_EXPLICIT_FRACTION = 0.9
# The fewest sequences that reach this fraction of the best measured throughput are declared.
_NEARLY_BEST = 0.9
# Tiers count in GB, because a machine sold with 16 GB shows a little less than 16 GiB, and more than 16 GB.
_GB = 1000**3
_RAM_TIERS = ((48, 3), (16, 2))  # the least RAM in GB, and the sequences
_MIB = 1024**2


class SequenceBytes(Struct, frozen=True):
    """Memory of one sequence: each token in the KV cache, and the states, which are there from the start."""

    per_token: int
    states: int = 0

    @classmethod
    def attending(cls, kv_heads: Iterable[int], key_length: int, value_length: int, states: int = 0) -> "SequenceBytes":
        """Return the bytes of a sequence in a KV cache of 16-bit floats; `kv_heads` are the KV heads of each layer."""
        return cls(sum(kv_heads) * (key_length + value_length) * _F16_BYTES, states)

    def of(self, context_tokens: int) -> int:
        """Return the bytes of a sequence of this context."""
        return self.per_token * context_tokens + self.states

    def tokens_within(self, size: int) -> int:
        """Return the number of tokens of a sequence within a size in bytes."""
        return max(0, size - self.states) // max(1, self.per_token)


class Need(Struct, frozen=True):
    """The inputs of the declaration: the memory of a sequence and of the machine, the cost curve, explicit figures.

    `free_bytes` is the memory left after the weights; `policy` names the source of `sequences`, or decides where they
    are None. A model runs at most `most_sequences`; llama.cpp aborts with some models beyond `most_tokens`.
    """

    sequence_bytes: SequenceBytes
    free_bytes: int
    total_bytes: int
    trained_context: int
    policy: Policy
    curve: Curve
    max_itl: float
    context_tokens: int | None = None
    sequences: int | None = None
    most_sequences: int = MAX_SEQUENCES
    most_tokens: int | None = None


class Declared(Struct, frozen=True):
    """The declaration of an engine; `requested` is the explicit number of sequences, where memory allows fewer."""

    sequences: int
    context_tokens: int
    policy: Policy
    requested: int | None = None


class Fitting(Struct, frozen=True):
    """The most sequences within the free memory: those that an engine chooses by itself, and an explicit figure."""

    context_tokens: int
    sequences: int
    most_sequences: int


def fitting(need: Need) -> Fitting:
    """Return the sequences within the free memory, without the policy and the curve."""
    context = _context_tokens(need)
    return Fitting(context, _fitting(need, context, _FRACTION), _fitting(need, context, _EXPLICIT_FRACTION))


def declare(need: Need) -> Declared:
    """Decide sequences and context within the free memory, by an explicit figure or by the policy."""
    context = _context_tokens(need)
    if need.sequences is not None:
        return _within_memory(need.sequences, need.policy, need, context)
    measured = _by_curve(need, context) if need.policy == "measured" else None
    if measured is not None:
        return Declared(measured, context, "measured")
    if need.policy == "ram_tiers":
        tier = next((sequences for least, sequences in _RAM_TIERS if need.total_bytes >= least * _GB), 1)
        return _within_memory(tier, need.policy, need, context)
    if need.policy == "ram_per_8gb":
        portions = need.total_bytes // _MIB // 8192
        return _within_memory(min(portions, _MOST_BY_MEMORY), need.policy, need, context)
    return Declared(min(_fitting(need, context, _FRACTION), _MOST_BY_MEMORY), context, "memory")


def _by_curve(need: Need, context: int) -> int | None:
    """Return the fewest sequences of nearly the best throughput; None where fewer than two sizes were measured."""
    most = min(_fitting(need, context, _FRACTION), _MOST_MEASURED)
    throughput = {
        rows: rows / seconds
        for rows, seconds in need.curve.decode.items()
        if rows == 1 or (rows <= most and seconds <= need.max_itl)
    }
    if len(need.curve.decode) < 2:
        return None
    return min(rows for rows, rate in throughput.items() if rate >= _NEARLY_BEST * max(throughput.values()))


def _within_memory(requested: int, policy: Policy, need: Need, context: int) -> Declared:
    sequences = max(1, min(requested, _fitting(need, context, _EXPLICIT_FRACTION)))
    return Declared(sequences, context, policy, requested if sequences < requested else None)


def _fitting(need: Need, context: int, fraction: float) -> int:
    """Return the number of sequences of this context within a fraction of the free memory, at least 1."""
    fitting = int(need.free_bytes * fraction) // max(1, need.sequence_bytes.of(context))
    return max(1, min(fitting, need.most_sequences))


def _context_tokens(need: Need) -> int:
    """Return the requested context within memory; without one the trained context up to 8192, or less where memory
    for two sequences is short, down to 2048.
    """
    if need.context_tokens is None:
        affordable = need.sequence_bytes.tokens_within(int(need.free_bytes * _FRACTION) // 2)
        affordable -= affordable % _CELLS
        best = min(need.trained_context, _DEFAULT_CONTEXT)
        tokens = _rounded(max(min(best, affordable), min(best, _LEAST_CONTEXT)))
    else:
        affordable = need.sequence_bytes.tokens_within(int(need.free_bytes * _EXPLICIT_FRACTION))
        tokens = min(_rounded(need.context_tokens), max(_CELLS, affordable - affordable % _CELLS))
    return tokens if need.most_tokens is None else min(tokens, need.most_tokens)


def _rounded(tokens: int) -> int:
    return -(-tokens // _CELLS) * _CELLS
