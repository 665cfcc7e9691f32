"""Rules of a grammar for arguments that are not JSON: Python's keyword arguments, and Gemma's objects."""

import json
import re
from typing import Any

from car_engine.output.families import Family
from car_engine.output.grammar_texts import GrammarTexts, literal
from car_engine.output.parameters import resolved
from car_protocol.conversation import Function

_DEEPEST = 8
_INTEGER = "/-?(0|[1-9][0-9]{0,17})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"
_PYTHON_TEXT = r'/"([^"\\\x00-\x1f]|\\["\\nt])*"/'
_PYTHON_KEY = r"/\"[^\"\\\x00-\x1f]{1,64}\"/"
_GEMMA_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_PLAIN_KEY = re.compile(r"[\w$-]+")
_WORDS = {"python": ("True", "False", "None"), "gemma": ("true", "false", "null")}


class LiteralGrammar:
    """Adds rules for arguments to those of a grammar; `texts` writes texts as elements of rules."""

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
        """Return the element of an object's members, in the order of the schema: required ones first."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = [key for key in properties if key in (schema.get("required") or ())]
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
