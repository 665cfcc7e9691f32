"""The texts of the client's options, which editors show, from the protocol's definitions."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from car_protocol.decide import DecideParams
from car_protocol.infer import InferParams
from car_protocol.methods import schemas
from car_protocol.text import TokenizeParams
from tools.reference.words import Schema, alternatives, figure, in_words, note_of

OPTIONS = Path(__file__).parents[2] / "client" / "car_client" / "options.py"
_WIDTH = 113
# The definition of each class of options.
KINDS: dict[str, type[Struct]] = {
    "InferOptions": InferParams,
    "DecideOptions": DecideParams,
    "TokenizeOptions": TokenizeParams,
}


def rewritten(source: str, kinds: dict[str, type[Struct]] = KINDS) -> str:
    """Return the source with the text of each member below it; members without a definition keep their own."""
    lines = source.split("\n")
    for _, (first, last), text in sorted(_places(source, kinds), reverse=True):
        lines[first:last] = _docstring(text) if text else []
    return "\n".join(lines)


def text_of(name: str, kind: type[Struct]) -> str:
    """Return what the definition says of a member, with its range and default."""
    member = schemas([kind])[kind.__name__]["properties"][name]
    sentences = [note_of(member), ", ".join(part for part in (_range(member), _default(member)) if part)]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences if sentence)


def _places(source: str, kinds: dict[str, type[Struct]]) -> Iterator[tuple[int, tuple[int, int], str]]:
    """Yield the lines of each member's text, from the first to the one behind the last, with the text."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name not in kinds:
            continue
        kind = kinds[node.name]
        defined = {field.encode_name for field in msgspec.structs.fields(kind)}
        for member, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
                continue
            has_text = isinstance(after, ast.Expr)
            end = (after.end_lineno if after and has_text else member.end_lineno) or 0
            if member.target.id in defined:
                yield member.lineno, (member.end_lineno or 0, end), text_of(member.target.id, kind)


def _docstring(text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    if not rest:
        return [f'    """{first}"""']
    return [f'    """{first}', *(f"    {line}" for line in rest), '    """']


def _range(member: Schema) -> str:
    first = alternatives(member)[0]
    if first.get("type") in ("integer", "number"):
        return in_words(first)
    most = first.get("maxItems", first.get("maxProperties"))
    return f"up to {figure(most)} entries" if most else ""


def _default(member: Schema) -> str:
    default: Any = member.get("default")
    return "" if default in (None, [], {}) else f"default {default!r}"
