"""The one declaration of capacity: the number of sequences that run at once, and their context."""

from msgspec import Struct

from car_daemon.capacity.curve import Curve
from car_daemon.ipc.model_sizes import CELLS, SequenceBytes, whole_cells
from car_daemon.ipc.ranges import MAX_SEQUENCES
from car_protocol.capacity import Policy

_MOST_MEASURED = 32
_MOST_BY_MEMORY = 8
# The shortest context that an engine chooses by itself.
LEAST_CONTEXT = 2048
# The KV cache's fraction of the free memory: by policy, for a number of sequences of any length, for explicit figures.
HOST_PART = 0.25
_NUMBER_FRACTION = 0.5
_EXPLICIT_FRACTION = 0.9
# A default context leaves room for this many sequences.
_LEAST_NUMBER = 2
# Offers of longer or more sequences are a factor of four apart.
_OFFERS = 4
# The fewest sequences that reach this fraction of the best measured throughput are declared.
_NEARLY_BEST = 0.9
# Tiers count in GB, because a machine sold with 16 GB shows a little less than 16 GiB, and more than 16 GB.
_GB = 1000**3
_RAM_TIERS = ((48, 3), (16, 2))  # the least RAM in GB, and the sequences
_MIB = 1024**2


class Need(Struct, frozen=True):
    """The inputs of the declaration: the memory of a sequence and of the machine, the cost curve, explicit figures.

    `free_bytes` is the memory left after the weights; `policy` names the source of `sequences`, or decides where they
    are None. `part` is that of the free memory which an engine takes by itself. A model runs at most `most_sequences`;
    llama.cpp aborts with some models beyond `most_tokens`.
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
    part: float = HOST_PART

    @property
    def number_part(self) -> float:
        """The part of the memory for a given number of sequences of any length."""
        return max(self.part, _NUMBER_FRACTION)

    @property
    def explicit_part(self) -> float:
        """The part of the memory for explicit figures."""
        return max(self.part, _EXPLICIT_FRACTION)


class Declared(Struct, frozen=True):
    """The declaration of an engine; `requested` is the explicit number of sequences, where memory allows fewer."""

    sequences: int
    context_tokens: int
    policy: Policy
    requested: int | None = None


class Offer(Struct, frozen=True):
    """A length of sequences, and how many of it an engine goes up to by itself."""

    sequences: int
    context_tokens: int


class Fitting(Struct, frozen=True):
    """The most sequences within the free memory: those that an engine chooses by itself, and an explicit figure.

    `offers` are longer and shorter sequences, the longest first.
    """

    context_tokens: int
    sequences: int
    most_sequences: int
    offers: tuple[Offer, ...] = ()


def fitting(need: Need) -> Fitting:
    """Return the sequences within the free memory, without the policy and the curve."""
    context = _context_tokens(need, need.sequences)
    return Fitting(
        context,
        _number(need, context, need.part),
        _number(need, context, need.explicit_part),
        _offers(need),
    )


def declare(need: Need) -> Declared:
    """Decide sequences and context within the free memory, by an explicit figure or by the policy.

    Without an explicit context a sequence has what the model was trained for, as far as two such sequences fit the KV
    cache's part of the memory, and a given number of them one half of it.
    """
    given = need.sequences if need.sequences is not None else _by_total_memory(need)
    context = _context_tokens(need, given)
    if given is not None:
        sequences = max(1, min(given, _number(need, context, need.explicit_part)))
        return Declared(sequences, context, need.policy, given if sequences < given else None)
    most = _number(need, context, need.part)
    measured = _by_curve(need, most) if need.policy == "measured" else None
    if measured is not None:
        return Declared(measured, context, "measured")
    return Declared(min(most, _MOST_BY_MEMORY), context, "memory")


def _by_total_memory(need: Need) -> int | None:
    """Return the number of sequences by the machine's memory, None for a policy that goes by other figures."""
    if need.policy == "ram_tiers":
        return next((sequences for least, sequences in _RAM_TIERS if need.total_bytes >= least * _GB), 1)
    if need.policy == "ram_per_8gb":
        return min(need.total_bytes // _MIB // 8192, _MOST_BY_MEMORY)
    return None


def _by_curve(need: Need, most: int) -> int | None:
    """Return the fewest sequences of nearly the best throughput; None where fewer than two sizes were measured."""
    throughput = {
        rows: rows / seconds
        for rows, seconds in need.curve.decode.items()
        if rows == 1 or (rows <= min(most, _MOST_MEASURED) and seconds <= need.max_itl)
    }
    if len(need.curve.decode) < 2:
        return None
    return min(rows for rows, rate in throughput.items() if rate >= _NEARLY_BEST * max(throughput.values()))


def _number(need: Need, context: int, fraction: float) -> int:
    """Return the number of sequences of this context within a fraction of the free memory, at least 1."""
    fits = need.sequence_bytes.number_within(int(need.free_bytes * fraction), context)
    return max(1, min(fits, need.most_sequences))


def _context_tokens(need: Need, given: int | None) -> int:
    """Return the requested context within memory; without one the longest of which a given number of sequences, or
    two, fit, up to the trained context and down to 2048.
    """
    free, each = need.free_bytes, need.sequence_bytes
    if need.context_tokens is not None:
        best, least = whole_cells(need.context_tokens), CELLS
        affordable = each.tokens_within(int(free * need.explicit_part))
    else:
        best = whole_cells(need.trained_context)
        least = min(best, LEAST_CONTEXT)
        number = _LEAST_NUMBER if given is None else max(1, given)
        affordable = each.tokens_within(int(free * need.part), min(number, _LEAST_NUMBER))
        affordable = min(
            affordable,
            each.tokens_within(int(free * need.number_part), min(number, need.most_sequences)),
        )
    tokens = max(least, min(best, affordable))
    return tokens if need.most_tokens is None else min(tokens, need.most_tokens)


def _offers(need: Need) -> tuple[Offer, ...]:
    """Return the lengths, up to the trained context, of which at least one sequence fits, and how many of each do."""
    longest = need.trained_context if need.most_tokens is None else min(need.trained_context, need.most_tokens)
    powers = (1 << exponent for exponent in range(longest.bit_length(), LEAST_CONTEXT.bit_length() - 2, -1))
    lengths = [
        whole_cells(longest) if need.most_tokens is None else longest,
        *(each for each in powers if each < longest),
    ]
    size = int(need.free_bytes * need.part)
    numbers = {length: need.sequence_bytes.number_within(size, length) for length in lengths}
    fits = [Offer(min(number, need.most_sequences), length) for length, number in numbers.items() if number]
    # Of lengths of which equally many run the longest is an offer.
    distinct = {offer.sequences: offer for offer in reversed(fits[::2][:_OFFERS])}
    return tuple(reversed(distinct.values()))
