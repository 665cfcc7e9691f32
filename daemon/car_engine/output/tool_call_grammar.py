"""Grammars (llguidance's Lark) under which an answer consists of tool calls alone, by the table of families."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from car_base.ipc.types import ParameterKind, ToolStyle
from car_engine.grammar.schema import closed
from car_engine.output.families import CDATA, FAMILIES, Aside, Attribute, Blank, Family, Head, Maybe
from car_engine.output.literals import kinds_of, listed, resolved
from car_protocol.conversation import Function

TokenOf = Callable[[str], int | None]


class GrammarTexts:
    """Writes texts of one family for one vocabulary; adds the rules that they need to the rules of a grammar."""

    def __init__(self, markers: Sequence[str], token_of: TokenOf, rules: dict[str, str]) -> None:
        self._token_of = token_of
        self._rules = rules
        self._ends: dict[tuple[str, str], str] = {}  # names of the rules of any text, by its end and the refused start
        longest_first = sorted(markers, key=len, reverse=True)
        tokens = [marker for marker in longest_first if token_of(marker) is not None]
        self._tokens = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else None

    def text(self, text: str) -> str:
        """Return the element of a text, empty for none."""
        before, *rest = self._split(text)
        return " ".join([literal(before), *rest] if before else rest)

    def until(self, end: str, refused: str = "") -> str:
        """Return the element of any text up to the first of its ends, with it; it may not begin as `refused`."""
        before, *rest = self._split(end)
        name = self._ends.setdefault((end, refused), f"text_{len(self._ends)}")
        without = [rf"/{_escaped(refused)}(?s:.*)/"] if refused else []
        if rest:
            # A control token ends the text, in which its end may not be spelled out.
            without.append(f"/(?s:.*){_escaped(end)}(?s:.*)/")
        terminal = name.upper()
        self._rules[terminal] = " & ~".join((f"/(?s:.*){_escaped(before)}/", *without))
        if rest:
            return " ".join((terminal, *rest))
        # Lazy, because it ends with the first of its ends.
        self._rules[f"{name}[lazy]"] = terminal
        return name

    def _split(self, text: str) -> list[str]:
        """Return the text before the first control token, then the elements of that token and of all that follows."""
        before, *rest = self._tokens.split(text) if self._tokens is not None else [text]
        tokens = zip(rest[::2], rest[1::2], strict=True)
        written = ((f"<[{self._token_of(token)}]>", literal(between)) for token, between in tokens)
        return [before, *(element for pair in written for element in pair if element != '""')]


def literal(text: str) -> str:
    """Return the element of a text without control tokens."""
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


_DEEPEST = 8
_INTEGER = "/-?(0|[1-9][0-9]{0,17})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"
_PYTHON_TEXT = r'/"([^"\\\x00-\x1f]|\\["\\nt])*"/'
_PYTHON_KEY = r"/\"[^\"\\\x00-\x1f]{1,64}\"/"
_GEMMA_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_PLAIN_KEY = re.compile(r"[\w$-]+")
_WORDS = {"python": ("True", "False", "None"), "gemma": ("true", "false", "null")}


class LiteralGrammar:
    """Adds rules for arguments to the rules of a grammar; `texts` writes texts as elements of rules."""

    def __init__(self, family: Family, texts: GrammarTexts, rules: dict[str, str]) -> None:
        self._python = family.notation == "python"
        self._quote = family.quote
        self._yes, self._no, self._none = (literal(word) for word in _WORDS["python" if self._python else "gemma"])
        self._texts = texts
        self._rules = rules

    def arguments(self, function: Function, index: int) -> str:
        """Return the element of a function's arguments; without brackets in Python's notation."""
        members = self._members(function.parameters, function.parameters, f"args{index}", depth=0)
        return members if self._python else f'"{{" {members} "}}"'

    def _members(self, schema: dict[str, Any], root: dict[str, Any], name: str, depth: int) -> str:
        """Return the element of an object's members, in the order of the schema: required members first."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = [key for key in properties if key in listed(schema, "required")]
        optional = [key for key in properties if key not in required]
        written = {
            key: f"{self._key(key, depth)} {self._value(resolved(schema, key, root), root, f'{name}_{number}', depth)}"
            for number, key in enumerate(properties)
        }
        rest = '""'
        alternatives: list[str] = []
        for number, key in reversed(list(enumerate(optional))):
            self._rules[f"{name}_o{number}"] = written[key]
            self._rules[f"{name}_r{number}"] = f'(", " {name}_o{number})? {rest}'
            alternatives.append(f"{name}_o{number} {rest}")
            rest = f"{name}_r{number}"
        if required:
            return ' ", " '.join(written[key] for key in required) + f" {rest}"
        return f"({' | '.join(alternatives)})?" if alternatives else '""'

    def _key(self, key: str, depth: int) -> str:
        if self._python:
            return literal(f"{key}=" if not depth else f"{json.dumps(key, ensure_ascii=False)}: ")
        # Other keys could not be told from values.
        return (
            literal(f"{key}:") if _PLAIN_KEY.fullmatch(key) else self._texts.text(f"{self._quote}{key}{self._quote}:")
        )

    def _value(self, schema: dict[str, Any], root: dict[str, Any], name: str, depth: int) -> str:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return "(" + " | ".join(self._constant(value) for value in values) + ")"
        match schema.get("type"):
            case "string":
                return self._any_text()
            case "integer":
                return _INTEGER
            case "number":
                return _NUMBER
            case "boolean":
                return f"({self._yes} | {self._no})"
            case "null":
                return self._none
            case "array" if depth < _DEEPEST and isinstance(items := schema.get("items"), dict):
                item = self._value(resolved({"properties": {"x": items}}, "x", root), root, f"{name}_i", depth + 1)
                self._rules[f"{name}_i"] = item
                return f'"[" ({name}_i ("," " "? {name}_i)*)? "]"'
            case "object" if depth < _DEEPEST and isinstance(schema.get("properties"), dict):
                return f'"{{" {self._members(schema, root, name, depth + 1)} "}}"'
        return self._anything()

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if not self._python:
                return f"{self._texts.text(self._quote)} {literal(value)} {self._texts.text(self._quote)}"
            return literal(json.dumps(value, ensure_ascii=False))
        words = {True: self._yes, False: self._no}
        if isinstance(value, bool):
            return words[value]
        return self._none if value is None else literal(json.dumps(value))

    def _any_text(self) -> str:
        if self._python:
            return _PYTHON_TEXT
        return f"{self._texts.text(self._quote)} {self._texts.until(self._quote)}"

    def _anything(self) -> str:
        key = f'{_PYTHON_KEY} ": "' if self._python else f'{_GEMMA_KEY} ":"'
        self._rules["anything"] = (
            f"{self._any_text()} | {_NUMBER} | {self._yes} | {self._no} | {self._none} | anylist | anydict"
        )
        self._rules["anylist"] = '"[" (anything ("," anything)*)? "]"'
        self._rules["anydict"] = f'"{{" ({key} anything ("," {key} anything)*)? "}}"'
        return "anything"


# Fixed separators of at most one blank, so that no model writes whitespace without end. Lenient, because a schema that
# may also guide unforced calls can be anything.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": True}
_TAGGED_NUMBER = "/[0-9]{1,3}/"


def tool_call_grammar(
    style: ToolStyle, functions: list[Function], *, one: bool, token_of: TokenOf, answer: str | None = None
) -> str:
    """Return the grammar of `one` call, else of one or more, or of an answer in their place.

    `token_of` returns control tokens by their texts; `answer` is the element of the answer that the model may choose.
    """
    family = FAMILIES[style]
    if family.older is not None and token_of(family.needs) is None:
        family = FAMILIES[family.older]
    return _Writer(family, token_of).grammar(functions, one=one, answer=answer)


class _Writer:
    """Writes the grammar of one request's calls in the syntax of a family."""

    def __init__(self, family: Family, token_of: TokenOf) -> None:
        self._family = family
        self._rules: dict[str, str] = {}  # by their names
        self._texts = GrammarTexts(family.markers, token_of, self._rules)
        self._literals = LiteralGrammar(family, self._texts, self._rules)

    def grammar(self, functions: list[Function], *, one: bool, answer: str | None) -> str:
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
        if answer is not None:
            self._rules |= {"calls": start, "answer": answer}
            start = "calls | answer"
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
        words = {Blank.NAME: literal(self._family.quoted_name(name)), Blank.WORD: _TAGGED_NUMBER}
        return " ".join(self._filled(self._family.head, words))

    def _filled(self, head: Head, words: Mapping[Blank, str]) -> Iterator[str]:
        """Yield the texts of a head, with rules in place of its slots."""
        for piece in head:
            match piece:
                case Blank():
                    yield words[piece]
                case Attribute(text, slot):
                    yield self._texts.text(text)
                    yield words[slot]
                case str(text) | Maybe(text):
                    yield self._texts.text(text)
                case Aside():
                    pass

    def _json(self, function: Function, index: int) -> str:
        # A rule of its own for each schema, because references in it start at its root; arguments are always an object.
        schema = {**closed(function.parameters), "type": "object", "x-guidance": _JSON_OPTIONS}
        self._rules[f"args{index}"] = f"%json {json.dumps(schema)}"
        return f"args{index}"

    def _parameters(self, function: Function, index: int) -> str:
        schema = function.parameters
        kinds = kinds_of([function])[function.name]
        required = listed(schema, "required")
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
        words = {
            Blank.KEY: literal(self._family.quoted_name(key)),
            Blank.TYPE: literal(parameter.type_of(kind, schema)),
        }
        opening = self._filled(parameter.open, words)
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
