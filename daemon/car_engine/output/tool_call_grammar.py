"""Grammars (llguidance's Lark) under which an answer consists of tool calls alone, by the table of families."""

import json

from car_base.ipc.types import ParameterKind, ToolStyle
from car_engine.grammar.schema import closed
from car_engine.output.families import CDATA, FAMILIES, Family, Maybe, Slot
from car_engine.output.grammar_texts import GrammarTexts, TokenOf, literal
from car_engine.output.literal_grammar import LiteralGrammar
from car_engine.output.parameters import kinds_of, resolved
from car_protocol.conversation import Function

# Fixed separators of at most one blank, so that no model writes whitespace without end. Lenient, because a schema that
# may also guide unforced calls can be anything.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": True}
_NUMBER = "/[0-9]{1,3}/"


def tool_call_grammar(style: ToolStyle, functions: list[Function], *, one: bool, token_of: TokenOf) -> str:
    """Return the grammar of `one` call, else of one or more; `token_of` returns control tokens by their texts."""
    family = FAMILIES[style]
    if family.older is not None and token_of(family.needs) is None:
        family = FAMILIES[family.older]
    return _Writer(family, token_of).grammar(functions, one=one)


class _Writer:
    """Writes the grammar of one request's calls in the syntax of a family."""

    def __init__(self, family: Family, token_of: TokenOf) -> None:
        self._family = family
        self._rules: dict[str, str] = {}  # by their names
        self._texts = GrammarTexts(family.markers, token_of, self._rules)
        self._literals = LiteralGrammar(family, self._texts, self._rules)

    def grammar(self, functions: list[Function], *, one: bool) -> str:
        """Return the grammar."""
        family = self._family
        opening, closing = self._texts.text(family.open), self._texts.text(family.close)
        around = (opening, closing) if family.each else ("", "")
        calls = [self._call(function, index, *around) for index, function in enumerate(functions)]
        self._rules["call"] = " | ".join(f"({each})" for each in calls)
        several = "call" if one or family.forces_one else self._several()
        if family.each:
            start = several
        elif family.listed:
            start = f'{opening} "[" {several} "]" {closing}'
        else:
            start = f"{opening} {several} {closing}"
        rules = {"start": start, **self._rules}
        return "".join(f"{name}: {rule}\n" for name, rule in rules.items())

    def _several(self) -> str:
        """Return the element of one call or more.

        The text between calls may follow the last one too, and a list may end with a line break: a model writes both
        before it decides whether another call follows, and would have to call again without end.
        """
        family = self._family
        between = self._texts.text(family.between)
        if not between or family.header is not None:
            return f"call ({between} call)*"
        last = f'({between} | "\\n")?' if family.listed else f"({between})?"
        return f"call ({between} call)* {last}"

    def _call(self, function: Function, index: int, opening: str, closing: str) -> str:
        lead = self._texts.text(self._family.lead.format(name=function.name))
        return f"{lead} {opening} {self._inner(function, index)} {closing}"

    def _inner(self, function: Function, index: int) -> str:
        family, name = self._family, function.name
        match family.notation:
            case "object":
                head = f'{{"{family.keys[0]}": "{name}", "{family.keys[1]}": '
                return f'{literal(head)} {self._json(function, index)} "}}"'
            case "keyed":
                return f'{json.dumps(f"""{{"{name}": """)} {self._json(function, index)} "}}"'
            case "json":
                arguments = self._json(function, index)
            case "parameters":
                arguments = self._parameters(function, index)
            case "python" | "gemma":
                arguments = self._literals.arguments(function, index)
        tail = " ".join(self._texts.text(text) for text in family.tail)
        return f"{self._head(name)} {arguments} {tail}"

    def _head(self, name: str) -> str:
        words = {Slot.NAME: literal(self._family.quoted_name(name)), Slot.WORD: _NUMBER}
        pieces = []
        for piece in self._family.head:
            if isinstance(piece, Slot):
                pieces.append(words[piece])
            elif isinstance(piece, str | Maybe):
                pieces.append(self._texts.text(piece if isinstance(piece, str) else piece.text))
        return " ".join(pieces)

    def _json(self, function: Function, index: int) -> str:
        # A rule of its own for each schema, because references in it start at its root; arguments are always an object.
        schema = {**closed(function.parameters), "type": "object", "x-guidance": _JSON_OPTIONS}
        self._rules[f"args{index}"] = f"%json {json.dumps(schema)}"
        return f"args{index}"

    def _parameters(self, function: Function, index: int) -> str:
        schema = function.parameters
        kinds = kinds_of([function])[function.name]
        required = schema.get("required") or ()
        written = []
        for number, (key, kind) in enumerate(kinds.items()):
            name = f"args{index}_{number}"
            self._rules[name] = self._parameter(key, kind, schema, name)
            written.append(name if key in required else f"{name}?")
        return " ".join(written)

    def _parameter(self, key: str, kind: ParameterKind, root: dict[str, object], name: str) -> str:
        parameter = self._family.parameter
        assert parameter is not None
        schema = resolved(root, key)
        close = parameter.close.format(key=key)
        words = {Slot.KEY: literal(self._family.quoted_name(key)), Slot.TYPE: literal(parameter.type_of(kind, schema))}
        opening = [
            words[piece] if isinstance(piece, Slot) else self._texts.text(_text(piece)) for piece in parameter.open
        ]
        pad = self._texts.text(parameter.pad)
        values = schema.get("enum")
        if kind == "value":
            value = {**closed(schema), "x-guidance": _JSON_OPTIONS}
            self._rules[f"{name}_value"] = f"%json {json.dumps(value)}"
            return " ".join((*opening, pad, f"{name}_value", pad, self._texts.text(close)))
        if kind == "text" and isinstance(values, list) and values:
            chosen = " | ".join(literal(value) for value in values)
            return " ".join((*opening, pad, f"({chosen})", pad, self._texts.text(close)))
        return " ".join((*opening, pad, self._texts.until(close, CDATA if parameter.cdata else "")))


def _text(piece: object) -> str:
    return piece if isinstance(piece, str) else getattr(piece, "text", "")
