"""The value that a node's label must have, as one of Ray's expressions: `a`, `in(a, b)`, or either after a `!`."""

import re

from msgspec import Struct

# What Ray takes as a value, and as the last part of a label's name.
WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_EXPRESSION = re.compile(rf"(?P<no>!?)(?:in\((?P<several>\s*{WORD}\s*(?:,\s*{WORD}\s*)*)\)|(?P<single>{WORD}))")


class LabelExpression(Struct, frozen=True):
    """A label has one of `values`; with `no` it has none of these values."""

    values: tuple[str, ...]
    no: bool = False
    several: bool = False

    def __str__(self) -> str:
        # Without blanks, because Ray takes them as part of a value: `in(a, b)` would not match b.
        text = ",".join(self.values)
        return ("!" if self.no else "") + (f"in({text})" if self.several else text)

    @classmethod
    def parse(cls, text: str) -> "LabelExpression":
        """Return the expression of a text; raises ValueError."""
        found = _EXPRESSION.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not a value of a label: write a word, in(a, b), or either after a !")
        values = (found["several"] or found["single"]).split(",")
        return cls(tuple(value.strip() for value in values), bool(found["no"]), found["several"] is not None)

    def takes(self, label: str | None) -> bool:
        """Return whether a node has such a label; None is a node without the label."""
        return (label in self.values) is not self.no
