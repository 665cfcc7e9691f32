"""The families of models that decide: how each is asked and how its labels are read, as data."""

from collections import defaultdict
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

from car_protocol.decide import MAX_OPTIONS

_LETTERS = (*ascii_uppercase, *ascii_lowercase)
_PAIRS = (*ascii_uppercase, *(first + second for first in ascii_uppercase for second in ascii_uppercase))
# A rating of lev is 0 to 8.
RATINGS = 9
# The names that temperatures of a file have for numbers of options up to a bound.
_BY_COUNT = ((2, "2"), (5, "3_5"), (10, "6_10"), (MAX_OPTIONS, "11"))
_BY_SIZE = ((8, "small"), (26, "mid"), (MAX_OPTIONS, "large"))


class DecisionFamily(NamedTuple):
    """How a family is asked.

    A label of `labels` counts if it is one token, and if `spaced` also with a space before it. A choice is read in
    `orders` orders. A predicate is either one of nine `ratings` or a choice of the two `sides`. Its temperatures may
    differ by `buckets` of numbers of options.
    """

    name: str
    labels: tuple[str, ...]
    spaced: bool = False
    orders: int = 1
    sorted_keys: bool = False
    ratings: bool = False
    sides: tuple[str, str] = ("yes", "no")
    true_first: bool = True
    buckets: tuple[tuple[int, str], ...] = _BY_COUNT

    def bucket(self, options: int) -> str:
        """Return the name of the bucket of a number of options."""
        return next(name for most, name in self.buckets if options <= most)


# Any chat model, by its chat template.
CHAT = DecisionFamily("chat", _PAIRS, spaced=True)
# Models whose files have the chat template `systemone`, by the key `decision.type` of their architecture.
OWN_WORDS = {
    family.name: family
    for family in (
        DecisionFamily("openjev", _LETTERS, sides=("true", "false")),
        DecisionFamily(
            "lev",
            _PAIRS,
            orders=2,
            sorted_keys=True,
            ratings=True,
            sides=("false", "true"),
            true_first=False,
            buckets=_BY_SIZE,
        ),
        DecisionFamily("nimble", _PAIRS, sides=("false", "true"), true_first=False),
    )
}
# Families whose answers are computed by heads on hidden states at markers, which the binding does not expose.
NEED_HEADS = frozenset({"kev", "laya", "clef"})


def labels_of(family: DecisionFamily, pieces: Sequence[bytes]) -> dict[str, list[int]]:
    """Return the labels that a family can use, each with the tokens that the model may write for it.

    `pieces` are the bytes of every token. A label counts with all of its tokens: with and without a space before it, if
    the family has both, so that no model has to be tried first, and the numbers are the same in each of its engines. A
    model writes all labels in one form, so labels with both come first, and a label without the usual form is left out.
    """
    texts = {form: label for label in family.labels for form in _forms(label, family)}
    found: defaultdict[str, list[int]] = defaultdict(list)
    for token, piece in enumerate(pieces):
        if (label := texts.get(piece)) is not None:
            found[label].append(token)
    present = texts.keys() & set(pieces)
    missing = {label: [form not in present for form in _forms(label, family)] for label in family.labels}
    lacking = [sum(column) for column in zip(*missing.values(), strict=True)]  # labels, by form
    usual = lacking.index(min(lacking))
    usable = sorted(
        (label for label in family.labels if not missing[label][usual]), key=lambda label: any(missing[label])
    )
    return {label: found[label] for label in usable[:MAX_OPTIONS]}


def _forms(label: str, family: DecisionFamily) -> list[bytes]:
    return [label.encode(), *([b" " + label.encode()] if family.spaced else [])]
