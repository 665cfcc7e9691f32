"""The labels of a vocabulary: texts that the model writes as one token."""

from collections import defaultdict
from collections.abc import Sequence

from car_engine.prompt.decision_families import DecisionFamily
from car_protocol.decide import MAX_OPTIONS


def labels_of(family: DecisionFamily, pieces: Sequence[bytes]) -> dict[str, list[int]]:
    """Return the labels that a family can use, each with the tokens that the model may write for it.

    `pieces` are the bytes of every token. A label counts with all of its tokens: with and without a space before it, if
    the family has both, so that no model has to be tried first, and the numbers are the same in each of its engines.
    """
    texts = {form: label for label in family.labels for form in _forms(label, family)}
    found: defaultdict[str, list[int]] = defaultdict(list)
    for token, piece in enumerate(pieces):
        if (label := texts.get(piece)) is not None:
            found[label].append(token)
    usable = [label for label in family.labels if label in found]
    return {label: found[label] for label in usable[:MAX_OPTIONS]}


def _forms(label: str, family: DecisionFamily) -> list[bytes]:
    return [label.encode(), *([b" " + label.encode()] if family.spaced else [])]
