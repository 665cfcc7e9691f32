"""The one declaration of capacity: the number of sequences that run at once, and their context."""

from msgspec import Struct, structs

from car_base.capacity.curve import Curve
from car_base.ipc.model_sizes import CELLS, SequenceBytes, whole_cells
from car_base.ipc.ranges import MAX_SEQUENCES
from car_protocol.capacity import Offer, Policy

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


class CapacityInputs(Struct, frozen=True):
    """The inputs of the declaration: the memory of a sequence and of the machine, the cost curve, explicit figures.

    `free_bytes` is the memory left after the weights; `policy` names the source of `sequences`, or decides if they are
    None. `part` is that of the free memory which an engine takes by itself. A model runs at most `most_sequences`;
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
    """The declaration of an engine; `requested` is the explicit number of sequences, if memory allows fewer."""

    sequences: int
    context_tokens: int
    policy: Policy
    requested: int | None = None


class CapacityEstimate(Struct, frozen=True):
    """The most sequences within the free memory: as many as an engine chooses by itself, and the largest explicit
    figure.

    `offers` are longer and shorter sequences, the longest first.
    """

    context_tokens: int
    sequences: int
    most_sequences: int
    offers: tuple[Offer, ...] = ()


def estimate_capacity(inputs: CapacityInputs) -> CapacityEstimate:
    """Return the sequences within the free memory, without the policy and the curve."""
    context = _context_tokens(inputs, inputs.sequences)
    return CapacityEstimate(
        context,
        _number(inputs, context, inputs.part),
        _number(inputs, context, inputs.explicit_part),
        _offers(inputs),
    )


def longest_context(inputs: CapacityInputs) -> int:
    """Return the longest context that may be given to a single sequence."""
    return _context_tokens(structs.replace(inputs, context_tokens=inputs.trained_context), 1)


def declare(inputs: CapacityInputs) -> Declared:
    """Decide sequences and context within the free memory, by an explicit figure or by the policy.

    Without an explicit context a sequence has the model's trained context, as far as two such sequences fit the KV
    cache's part of the memory. If the number of sequences is given, as many have to fit one half of it.
    """
    given = inputs.sequences if inputs.sequences is not None else _by_total_memory(inputs)
    context = _context_tokens(inputs, given)
    if given is not None:
        sequences = max(1, min(given, _number(inputs, context, inputs.explicit_part)))
        return Declared(sequences, context, inputs.policy, given if sequences < given else None)
    most = _number(inputs, context, inputs.part)
    measured = _by_curve(inputs, most) if inputs.policy == "measured" else None
    if measured is not None:
        return Declared(measured, context, "measured")
    return Declared(min(most, _MOST_BY_MEMORY), context, "memory")


def _by_total_memory(inputs: CapacityInputs) -> int | None:
    """Return the number of sequences by the machine's memory, None for a policy that goes by other figures."""
    if inputs.policy == "ram_tiers":
        return next((sequences for least, sequences in _RAM_TIERS if inputs.total_bytes >= least * _GB), 1)
    if inputs.policy == "ram_per_8gb":
        return min(inputs.total_bytes // _MIB // 8192, _MOST_BY_MEMORY)
    return None


def _by_curve(inputs: CapacityInputs, most: int) -> int | None:
    """Return the fewest sequences of nearly the best throughput; None if fewer than two sizes were measured."""
    throughput = {
        rows: rows / seconds
        for rows, seconds in inputs.curve.decode.items()
        if rows == 1 or (rows <= min(most, _MOST_MEASURED) and seconds <= inputs.max_itl)
    }
    if len(inputs.curve.decode) < 2:
        return None
    return min(rows for rows, rate in throughput.items() if rate >= _NEARLY_BEST * max(throughput.values()))


def _number(inputs: CapacityInputs, context: int, fraction: float) -> int:
    """Return the number of sequences of this context within a fraction of the free memory, at least 1."""
    fits = inputs.sequence_bytes.number_within(int(inputs.free_bytes * fraction), context)
    return max(1, min(fits, inputs.most_sequences))


def _context_tokens(inputs: CapacityInputs, given: int | None) -> int:
    """Return the requested context within memory; without one the longest, up to the trained context and down to 2048,
    at which the given number of sequences, or two, fit.
    """
    free, each = inputs.free_bytes, inputs.sequence_bytes
    if inputs.context_tokens is not None:
        best, least = whole_cells(inputs.context_tokens), CELLS
        affordable = each.tokens_within(int(free * inputs.explicit_part))
    else:
        best = whole_cells(inputs.trained_context)
        least = min(best, LEAST_CONTEXT)
        number = _LEAST_NUMBER if given is None else max(1, given)
        affordable = each.tokens_within(int(free * inputs.part), min(number, _LEAST_NUMBER))
        affordable = min(
            affordable,
            each.tokens_within(int(free * inputs.number_part), min(number, inputs.most_sequences)),
        )
    tokens = max(least, min(best, affordable))
    return tokens if inputs.most_tokens is None else min(tokens, inputs.most_tokens)


def _offers(inputs: CapacityInputs) -> tuple[Offer, ...]:
    """Return the lengths, up to the trained context, at which at least one sequence fits, and the number that fits."""
    longest = inputs.trained_context if inputs.most_tokens is None else min(inputs.trained_context, inputs.most_tokens)
    powers = (1 << exponent for exponent in range(longest.bit_length(), LEAST_CONTEXT.bit_length() - 2, -1))
    lengths = [
        whole_cells(longest) if inputs.most_tokens is None else longest,
        *(each for each in powers if each < longest),
    ]
    size = int(inputs.free_bytes * inputs.part)
    numbers = {length: inputs.sequence_bytes.number_within(size, length) for length in lengths}
    fits = [Offer(min(number, inputs.most_sequences), length) for length, number in numbers.items() if number]
    # If equally many run at several lengths, the longest is an offer.
    distinct = {offer.sequences: offer for offer in reversed(fits[::2][:_OFFERS])}
    return tuple(reversed(distinct.values()))
