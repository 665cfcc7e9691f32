"""Grammars (llguidance's Lark) under which an answer is nothing but tool calls."""

import json
from collections.abc import Callable

from car_daemon.engine.grammar.schema import closed
from car_daemon.engine.output.format import ARGS, CALL_CLOSE, CALL_OPEN, TOOL_CALLS, ToolStyle
from car_protocol.conversation import Function

TokenOf = Callable[[str], int | None]

# Fixed separators, as `whitespace_pattern` bounds nothing before llguidance 1.8: at most one blank each, so that
# no model writes whitespace without end. Lenient, as a schema that only guides an unforced call may be anything.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": True}


def forced_call(style: ToolStyle, functions: list[Function], *, one: bool, token_of: TokenOf) -> str:
    """Return the grammar of one call (else at least one) of these functions; `token_of` knows control tokens."""
    rules = {"hermes": _hermes, "llama3": _llama3, "mistral": _mistral}[style](functions, one, token_of)
    schemas = (f"args{index}: %json {_schema(function)}" for index, function in enumerate(functions))
    return "\n".join((*rules, *schemas, ""))


def _hermes(functions: list[Function], one: bool, token_of: TokenOf) -> list[str]:
    opening, closing = _marker(CALL_OPEN, token_of), _marker(CALL_CLOSE, token_of)
    return [
        "start: " + _repeated("call", r'"\n"', one),
        rf'call: {opening} "\n" ({_objects(functions, "arguments")}) "\n" {closing}',
    ]


def _llama3(functions: list[Function], one: bool, token_of: TokenOf) -> list[str]:
    return ["start: " + _repeated("call", '"; "', one), "call: " + _objects(functions, "parameters")]


def _mistral(functions: list[Function], one: bool, token_of: TokenOf) -> list[str]:
    marker = _marker(TOOL_CALLS, token_of)
    if token_of(ARGS) is None:
        # The vocabulary is of the time when calls were an array.
        array = _repeated("call", '", "', one)
        return [f'start: {marker} "[" {array} "]"', "call: " + _objects(functions, "arguments")]
    named = (f"{_text(function.name)} {_marker(ARGS, token_of)} args{i}" for i, function in enumerate(functions))
    return ["start: " + _repeated("call", "", one), f"call: {marker} ({' | '.join(named)})"]


def _objects(functions: list[Function], key: str) -> str:
    heads = (_text(f'{{"name": "{function.name}", "{key}": ') for function in functions)
    return " | ".join(f'{head} args{index} "}}"' for index, head in enumerate(heads))


def _repeated(rule: str, separator: str, one: bool) -> str:
    return rule if one else f"{rule} ({separator} {rule})*"


def _marker(marker: str, token_of: TokenOf) -> str:
    token = token_of(marker)
    return _text(marker) if token is None else f"<[{token}]>"


def _text(text: str) -> str:
    return json.dumps(text)


def _schema(function: Function) -> str:
    # References in a schema start at its root, so that it stands alone; arguments are an object whatever it says.
    return json.dumps({**closed(function.parameters), "type": "object", "x-guidance": _JSON_OPTIONS})
