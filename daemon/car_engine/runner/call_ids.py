"""The ids of the tool calls in an answer."""

from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from secrets import token_hex

from car_base.ipc.frames import Run

_BYTES = 12
_SEED_BITS = 32


def call_ids(run: Run) -> Callable[[], str]:
    """Return a source of ids: random ones, for a reproducible request derived from its prompt and seed."""
    if not run.options.reproducible:
        return lambda: f"call_{token_hex(_BYTES)}"
    numbers = count(run.options.seed << _SEED_BITS)

    def derived() -> str:
        number = next(numbers).to_bytes(_BYTES, "little")
        return f"call_{blake2b(run.prepared.tokens, digest_size=_BYTES, person=number).hexdigest()}"

    return derived
