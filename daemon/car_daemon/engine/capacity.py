"""Capacity is declared here and nowhere else: how many sequences run at once, and how long they are."""

from dataclasses import dataclass

from car_protocol.capacity import Policy

# llama.cpp's own bound on sequences of one context.
MAX_SEQUENCES = 256
_MOST_BY_MEMORY = 8
_DEFAULT_CONTEXT = 8192
_LEAST_CONTEXT = 2048
# llama.cpp rounds the cells of a stream up to a multiple of this.
_CELLS = 256
# The KV cache's share of the memory that is free: by policy, and where a figure was given explicitly.
_SHARE = 0.25
_EXPLICIT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Need:
    """What decides capacity: KV cache in bytes per token, bytes free after the weights, what was asked."""

    kv_bytes_per_token: int
    free_bytes: int
    trained_context: int
    context_tokens: int | None = None
    sequences: int | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What an engine declares; `asked` is an explicit figure that memory did not allow."""

    sequences: int
    context_tokens: int
    policy: Policy
    asked: int | None = None


def declare(need: Need) -> Declared:
    """Decide sequences and context: an explicit figure as far as memory holds it, else by memory."""
    context = _context_tokens(need)
    per_sequence = max(1, need.kv_bytes_per_token * context)
    if need.sequences is None or need.policy is None:
        fitting = int(need.free_bytes * _SHARE) // per_sequence
        return Declared(_between(fitting, _MOST_BY_MEMORY), context, "memory")
    fitting = int(need.free_bytes * _EXPLICIT_SHARE) // per_sequence
    sequences = _between(min(need.sequences, fitting), MAX_SEQUENCES)
    asked = need.sequences if sequences < need.sequences else None
    return Declared(sequences, context, need.policy, asked)


def _context_tokens(need: Need) -> int:
    if need.context_tokens is not None:
        return _rounded(need.context_tokens)
    wanted = min(need.trained_context, _DEFAULT_CONTEXT)
    affordable = int(need.free_bytes * _SHARE) // max(1, 2 * need.kv_bytes_per_token)
    return _rounded(max(min(wanted, affordable), min(wanted, _LEAST_CONTEXT)))


def _rounded(tokens: int) -> int:
    return -(-tokens // _CELLS) * _CELLS


def _between(sequences: int, most: int) -> int:
    return max(1, min(sequences, most))
