"""The table of the families of models that decide, from what asks them; and a program that asks."""

from typing import get_args

from car_engine.prompt.decision_families import CHAT, NEED_HEADS, OWN_WORDS, RATINGS, DecisionFamily
from car_protocol.decide import MAX_OPTIONS, QuestionAnswer
from tools.reference.examples import shown
from tools.reference.protocol import request_rows, table

_HEADING = ("model", "chat template", "labels of one token each", "a predicate", "readings of a choice", "keys")


def families() -> str:
    """Return every family with its labels, and how its questions are put."""
    asked = [("any chat model", "its own", CHAT), *((name, "`systemone`", each) for name, each in OWN_WORDS.items())]
    rows = [(model, template, *_said(family)) for model, template, family in asked]
    return table(_HEADING, [*rows, (", ".join(sorted(NEED_HEADS)), "", "none: 1004, `lacks: decisions`", "", "", "")])


def _said(family: DecisionFamily) -> tuple[str, str, str, str]:
    labels = f"`{family.labels[0]}` to `{family.labels[-1]}`, up to {min(len(family.labels), MAX_OPTIONS)}"
    sides = " or ".join(f"`{side}`" for side in family.sides)
    predicate = f"the mean of {RATINGS} ratings" if family.ratings else sides
    return labels, predicate, str(family.orders), "sorted" if family.sorted_keys else "as they come"


def answers() -> str:
    """Return the members of the answer to each type of question; an empty cell repeats the cell above."""
    rows = []
    for kind in get_args(QuestionAnswer):
        own = [row for row in request_rows(kind) if row[3]]
        rows += [("" if place else f"`{kind.__struct_config__.tag}`", row[0], row[3]) for place, row in enumerate(own)]
    return table(("question", "member", "meaning"), rows)


TABLES = {"families": families, "answers": answers, "route": lambda: shown("route.py")}
