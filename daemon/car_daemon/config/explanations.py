"""msgspec's messages about values of the configuration, with what may be written instead."""

from car_base.host.devices import PATTERN, PATTERN_OR_AUTO
from car_protocol.choices import with_choices

_DEVICES = '"cpu", "gpu" for all GPUs, or "gpu0" to "gpu99" for one of them'
_WORDS = {PATTERN: f"write {_DEVICES}", PATTERN_OR_AUTO: f'write "auto", {_DEVICES}, or a list of them'}


def explained(why: str, kind: type, path: str) -> str:
    """Return a message about the member of a table at a path, with the words of a pattern, or an enum's values."""
    for pattern, words in _WORDS.items():
        if why.endswith(f"matching regex {pattern!r}"):
            return words
    return with_choices(why, kind, path)
