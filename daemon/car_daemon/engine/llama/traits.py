"""What llama.cpp needs of those who run some architectures, beside what it tells itself."""

from typing import NamedTuple

from car_daemon.engine.capacity import MAX_SEQUENCES


class Traits(NamedTuple):
    """How a model of an architecture has to be run.

    `shares_prefill`: prompts of several sequences may be read in one batch. It runs at most so many sequences.
    `position_table`: a position beyond the trained context ends the process, where others only get worse.
    """

    shares_prefill: bool = True
    most_sequences: int = MAX_SEQUENCES
    position_table: bool = False


_ORDINARY = Traits()
# Of the state that these two keep, llama.cpp stores that of the first of several sequences alone, where the batch has
# more than one token of each.
_STORES_ONE = Traits(shares_prefill=False)
# Learned positions are rows of a table; MPT may have one, and where it has none attention gets worse instead.
_TABLE = Traits(position_table=True)
_TRAITS = {
    "arwkv7": _STORES_ONE,
    "rwkv6qwen2": _STORES_ONE,
    # Its tokens change places between sequences, and its states are stored beside their tensors.
    "plamo2": Traits(most_sequences=1),
    "bert": _TABLE,
    "gpt2": _TABLE,
    "mpt": _TABLE,
    "starcoder": _TABLE,
}


def traits_of(architecture: str) -> Traits:
    """Return the traits of an architecture by llama.cpp's name for it."""
    return _TRAITS.get(architecture, _ORDINARY)
