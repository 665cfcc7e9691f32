"""Grammars (llguidance's Lark) under which an answer consists of tool calls alone, by the table of families."""

import json
import re
from collections.abc import Callable

from car_daemon.engine.grammar.schema import closed
from car_daemon.engine.output.families import FAMILIES, Family, Maybe, Slot
from car_daemon.engine.output.literal_grammar import LiteralGrammar
from car_daemon.engine.output.parameters import kinds_of, resolved
from car_daemon.ipc.types import ParameterKind, ToolStyle
from car_protocol.conversation import Function

TokenOf = Callable[[str], int | None]

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
        self._token_of = token_of
        self._rules: dict[str, str] = {}  # by their names
        self._ends: dict[str, str] = {}  # names of the rules of texts, by the texts' ends
        longest_first = sorted(family.markers, key=len, reverse=True)
        tokens = [marker for marker in longest_first if token_of(marker) is not None]
        self._tokens = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else None
        self._literals = LiteralGrammar(family, self.text, self._rules)

    def grammar(self, functions: list[Function], *, one: bool) -> str:
        """Return the grammar."""
        family = self._family
        calls = [self._call(function, index) for index, function in enumerate(functions)]
        opening, closing = self.text(family.open), self.text(family.close)
        call = " | ".join(f"({each})" for each in calls)
        if family.each:
            self._rules["call"] = f"{opening} ({call}) {closing}"
        else:
            self._rules["call"] = call
        several = "call" if one or family.forces_one else f"call ({self.text(family.between)} call)*"
        if family.each:
            start = several
        elif family.listed:
            start = f'{opening} "[" {several} "]" {closing}'
        else:
            start = f"{opening} {several} {closing}"
        rules = {"start": start, **self._rules}
        return "".join(f"{name}: {rule}\n" for name, rule in rules.items())

    def text(self, text: str) -> str:
        """Return a text as an element of a rule, its control tokens as tokens."""
        if not text:
            return ""
        parts = self._tokens.split(text) if self._tokens is not None else [text]
        written = []
        for part in filter(None, parts):
            token = self._token_of(part) if self._tokens is not None and self._tokens.fullmatch(part) else None
            written.append(json.dumps(part, ensure_ascii=False) if token is None else f"<[{token}]>")
        return " ".join(written)

    def _call(self, function: Function, index: int) -> str:
        family, name = self._family, function.name
        match family.notation:
            case "object":
                head = f'{{"{family.keys[0]}": "{name}", "{family.keys[1]}": '
                return f'{json.dumps(head)} {self._json(function, index)} "}}"'
            case "keyed":
                return f'{json.dumps(f"""{{"{name}": """)} {self._json(function, index)} "}}"'
            case "json":
                arguments = self._json(function, index)
            case "parameters":
                arguments = self._parameters(function, index)
            case "python" | "gemma":
                arguments = self._literals.arguments(function, index)
        tail = " ".join(self.text(text) for text in family.tail)
        return f"{self.text(family.lead.format(name=name))} {self._head(name)} {arguments} {tail}"

    def _head(self, name: str) -> str:
        words = {Slot.NAME: json.dumps(name), Slot.WORD: _NUMBER}
        pieces = []
        for piece in self._family.head:
            if isinstance(piece, Slot):
                pieces.append(words[piece])
            elif isinstance(piece, str | Maybe):
                pieces.append(self.text(piece if isinstance(piece, str) else piece.text))
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
        words = {Slot.KEY: json.dumps(key, ensure_ascii=False), Slot.TYPE: json.dumps(parameter.type_of(kind, schema))}
        opening = [words[piece] if isinstance(piece, Slot) else self.text(_text(piece)) for piece in parameter.open]
        pad = self.text(parameter.pad)
        values = schema.get("enum")
        if kind == "value":
            value = {**closed(schema), "x-guidance": _JSON_OPTIONS}
            self._rules[f"{name}_value"] = f"%json {json.dumps(value)}"
            return " ".join((*opening, pad, f"{name}_value", pad, self.text(close)))
        if kind == "text" and isinstance(values, list) and values:
            chosen = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            return " ".join((*opening, pad, f"({chosen})", pad, self.text(close)))
        return " ".join((*opening, pad, self._until(close)))

    def _until(self, close: str) -> str:
        """Return the name of a rule of any text with its end."""
        written = self.text(close)
        if written.startswith("<["):
            self._rules["text"] = r"/(?s:.*)/"
            return f"text {written}"
        # Lazy: the text ends where a reader finds its end.
        name = self._ends.setdefault(close, f"text_{len(self._ends)}")
        self._rules[f"{name}[lazy]"] = rf"/(?s:.*){re.escape(close).replace('/', chr(92) + '/')}/"
        return name


def _text(piece: object) -> str:
    return piece if isinstance(piece, str) else getattr(piece, "text", "")
