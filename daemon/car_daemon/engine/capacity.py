"""Capacity is declared here and nowhere else: how many sequences run at once, and how long they are."""

from collections.abc import Callable

from msgspec import Struct

from car_daemon.engine.curve import Curve
from car_protocol.capacity import Policy

# llama.cpp's own bound on sequences of one context.
MAX_SEQUENCES = 256
_MOST_MEASURED = 32
_MOST_BY_MEMORY = 8
_DEFAULT_CONTEXT = 8192
_LEAST_CONTEXT = 2048
# llama.cpp rounds the cells of a stream up to a multiple of this.
_CELLS = 256
# The KV cache's share of the memory that is free: by policy, and where a figure was given explicitly.
_SHARE = 0.25
_EXPLICIT_SHARE = 0.9
# The fewest sequences that reach this share of the best measured throughput are declared.
_NEARLY_BEST = 0.9
# A machine sold with 16 GB shows a little less than 16 GiB, and more than 16 GB.
_GB = 1000**3
_MIB = 1024**2


class SequenceBytes(Struct, frozen=True):
    """What one sequence takes: each token in the KV cache, and its states, which are there from the begin."""

    per_token: int
    states: int = 0

    def of(self, context_tokens: int) -> int:
        """Return the bytes of a sequence of so many tokens."""
        return self.per_token * context_tokens + self.states

    def tokens_within(self, size: int) -> int:
        """Return how many tokens a sequence of so many bytes may have."""
        return max(0, size - self.states) // max(1, self.per_token)


class Need(Struct, frozen=True):
    """What decides capacity: what a sequence takes, bytes of memory, the cost curve, what was asked for.

    `free_bytes` is what is left after the weights; `policy` says what gave `sequences`, or decides without it. No model
    runs more than `most_sequences`, and some end the process beyond `most_tokens`.
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
    """What an engine declares; `asked` is a figure that memory did not allow."""

    sequences: int
    context_tokens: int
    policy: Policy
    asked: int | None = None


class Fitting(Struct, frozen=True):
    """Sequences that memory holds: as far as an engine goes by itself, and for an explicit figure."""

    context_tokens: int
    sequences: int
    most_sequences: int


def fitting(need: Need) -> Fitting:
    """Return what memory holds, whatever the policy and the curve."""
    context = _context_tokens(need)
    return Fitting(context, _fitting(need, context, _SHARE), _fitting(need, context, _EXPLICIT_SHARE))


def declare(need: Need) -> Declared:
    """Decide sequences and context, by an explicit figure or by the policy, as far as memory holds them."""
    context = _context_tokens(need)
    if need.sequences is not None:
        return _within_memory(need.sequences, need.policy, need, context)
    measured = _by_curve(need, context) if need.policy == "measured" else None
    if measured is not None:
        return Declared(measured, context, "measured")
    by_ram = _BY_RAM.get(need.policy)
    if by_ram is not None:
        return _within_memory(by_ram(need.total_bytes), need.policy, need, context)
    return Declared(min(_fitting(need, context, _SHARE), _MOST_BY_MEMORY), context, "memory")


def _by_curve(need: Need, context: int) -> int | None:
    """Return the fewest sequences of nearly the best throughput; None where too little was measured."""
    most = min(_fitting(need, context, _SHARE), _MOST_MEASURED)
    throughput = {
        rows: rows / seconds
        for rows, seconds in need.curve.decode.items()
        if rows == 1 or (rows <= most and seconds <= need.max_itl)
    }
    if len(need.curve.decode) < 2:
        return None
    return min(rows for rows, rate in throughput.items() if rate >= _NEARLY_BEST * max(throughput.values()))


def _by_tiers(total_bytes: int) -> int:
    """48 GB and more: 3 sequences; 16 and more: 2; else 1."""
    return next((sequences for least, sequences in ((48, 3), (16, 2)) if total_bytes >= least * _GB), 1)


def _per_8gb(total_bytes: int) -> int:
    """One sequence for each 8192 MiB, at least 1, at most 8."""
    return max(1, min(8, total_bytes // _MIB // 8192))


_BY_RAM: dict[Policy, Callable[[int], int]] = {"ram_tiers": _by_tiers, "ram_per_8gb": _per_8gb}


def _within_memory(asked: int, policy: Policy, need: Need, context: int) -> Declared:
    sequences = max(1, min(asked, _fitting(need, context, _EXPLICIT_SHARE)))
    return Declared(sequences, context, policy, asked if sequences < asked else None)


def _fitting(need: Need, context: int, share: float) -> int:
    """Return how many sequences of this context a share of the free memory holds."""
    fitting = int(need.free_bytes * share) // max(1, need.sequence_bytes.of(context))
    return max(1, min(fitting, need.most_sequences))


def _context_tokens(need: Need) -> int:
    tokens = _wanted_tokens(need) if need.context_tokens is None else _asked_tokens(need, need.context_tokens)
    return tokens if need.most_tokens is None else min(tokens, need.most_tokens)


def _asked_tokens(need: Need, asked: int) -> int:
    holds = need.sequence_bytes.tokens_within(int(need.free_bytes * _EXPLICIT_SHARE))
    return min(_rounded(asked), max(_CELLS, holds - holds % _CELLS))


def _wanted_tokens(need: Need) -> int:
    wanted = min(need.trained_context, _DEFAULT_CONTEXT)
    affordable = need.sequence_bytes.tokens_within(int(need.free_bytes * _SHARE) // 2)
    affordable -= affordable % _CELLS
    return _rounded(max(min(wanted, affordable), min(wanted, _LEAST_CONTEXT)))


def _rounded(tokens: int) -> int:
    return -(-tokens // _CELLS) * _CELLS
