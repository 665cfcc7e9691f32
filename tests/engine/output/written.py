"""Calls as a forced answer of a family has them, written from the table of families."""

import json
from collections.abc import Mapping
from typing import Any

from car_engine.output.families import Aside, Attribute, Blank, Family, Head, Maybe
from car_protocol.conversation import Function

_WORDS = {"python": {True: "True", False: "False", None: "None"}, "gemma": {True: "true", False: "false", None: "null"}}


class Call:
    """A call of a function with its arguments."""

    def __init__(self, function: Function, arguments: Mapping[str, Any]) -> None:
        self.function = function
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{self.function.name}({dict(self.arguments)})"


def written(family: Family, calls: list[Call], last: str = "") -> str:
    """Return the answer that consists of these calls, with `last` after the last of them."""
    if family.each:
        each = (_lead(family, call) + family.open + _call(family, call) + family.close for call in calls)
        return family.between.join(each) + last
    inner = family.between.join(_call(family, call) for call in calls) + last
    return family.open + (f"[{inner}]" if family.listed else inner) + family.close


def _lead(family: Family, call: Call) -> str:
    return family.lead.format(name=call.function.name)


def _call(family: Family, call: Call) -> str:
    name, arguments = call.function.name, call.arguments
    match family.notation:
        case "object":
            return f'{{"{family.keys[0]}": "{name}", "{family.keys[1]}": {_json(arguments)}}}'
        case "keyed":
            return f'{{"{name}": {_json(arguments)}}}'
        case "json":
            inner = _json(arguments)
        case "parameters":
            inner = "".join(_parameter(family, call.function, key, value) for key, value in arguments.items())
        case "python":
            inner = ", ".join(f"{key}={_python(value)}" for key, value in arguments.items())
        case "gemma":
            inner = _gemma(family.quote, arguments)
    return _head(family.head, {Blank.NAME: family.quoted_name(name)}) + inner + "".join(family.tail)


def _head(head: Head, words: Mapping[Blank, str]) -> str:
    texts = []
    for piece in head:
        match piece:
            case str():
                texts.append(piece)
            case Blank():
                texts.append(words.get(piece, "1"))
            case Maybe(text):
                texts.append(text)
            case Attribute(text, slot):
                texts += [text, words.get(slot, "1")]
            case Aside():
                pass
    return "".join(texts)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parameter(family: Family, function: Function, key: str, value: Any) -> str:
    parameter = family.parameter
    assert parameter is not None
    schema = function.parameters["properties"][key]
    kind = "text" if isinstance(value, str) else "value"
    opening = _head(
        parameter.open,
        {
            Blank.KEY: family.quoted_name(key),
            Blank.TYPE: parameter.type_of("text" if kind == "text" else "value", schema),
        },
    )
    text = value if kind == "text" else _json(value)
    return opening + parameter.pad + text + parameter.pad + parameter.close.format(key=key)


def _python(value: Any) -> str:
    match value:
        case bool() | None:
            return _WORDS["python"][value]
        case str():
            return _json(value)
        case list():
            return "[" + ", ".join(map(_python, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_json(key)}: {_python(each)}" for key, each in value.items()) + "}"
    return _json(value)


def _gemma(quote: str, value: Any) -> str:
    match value:
        case bool() | None:
            return _WORDS["gemma"][value]
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return "[" + ", ".join(_gemma(quote, each) for each in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key}:{_gemma(quote, each)}" for key, each in value.items()) + "}"
    return _json(value)
