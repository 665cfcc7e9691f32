"""Requirements of architectures that llama.cpp does not expose."""

from typing import NamedTuple

from car_base.ipc.ranges import MAX_SEQUENCES


class Traits(NamedTuple):
    """Bounds on the use of an architecture.

    `shares_prefill`: one batch may prefill several sequences. `most_sequences`: the bound on sequences.
    `position_table`: a position beyond the trained context crashes llama.cpp, where other models only get worse.
    """

    shares_prefill: bool = True
    most_sequences: int = MAX_SEQUENCES
    position_table: bool = False


_ORDINARY = Traits()
# For these two llama.cpp stores the state of the first sequence alone where a batch has more than one token of several.
_STORES_ONE = Traits(shares_prefill=False)
# Learned positions are rows of a table; MPT may have one, without it attention only gets worse.
_TABLE = Traits(position_table=True)
_TRAITS = {
    "arwkv7": _STORES_ONE,
    "rwkv6qwen2": _STORES_ONE,
    # llama.cpp mixes up tokens of different sequences, and stores states beside their tensors.
    "plamo2": Traits(most_sequences=1),
    "bert": _TABLE,
    "gpt2": _TABLE,
    "mpt": _TABLE,
    "starcoder": _TABLE,
}


def traits_of(architecture: str) -> Traits:
    """Return the traits of an architecture by llama.cpp's name for it."""
    return _TRAITS.get(architecture, _ORDINARY)
