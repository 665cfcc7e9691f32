"""The grammar of an answer: the client's own, its JSON schema's, or that of the tool call it requires."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from car_base.ipc.frames import Chat, Prepare, Reading
from car_base.ipc.refusal import Refusal
from car_engine.grammar.constraint import ConstraintError
from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.grammar.schema import (
    TOO_WIDE,
    closed,
    embedded,
    inexact,
    is_too_wide,
    left_out,
    normalized,
    place_of,
    schemas_in,
)
from car_engine.grammar.schema import as_lark as schema_as_lark
from car_engine.grammar.tree import GrammarError
from car_engine.output.families import FAMILIES, Family
from car_engine.output.tool_call_grammar import tool_call_grammar
from car_protocol.conversation import NamedTool

# Where a reference leads that stays right if the definitions move up with it.
_DEFINED = ("#/$defs/", "#/definitions/")
# Bounded, because definitions that refer to each other in a chain are compiled by recursion on the stack.
_MOST_CHARACTERS = 256 * 1024


class OutputConstraints:
    """Writes and checks grammars.

    `compile_grammar` takes the client's uid and raises ConstraintError; `token_of` returns a control token by its text;
    `warnings` returns the library's words about parts of a grammar that it leaves out.
    """

    def __init__(
        self,
        compile_grammar: Callable[[int, str], None],
        token_of: Callable[[str], int | None],
        warnings: Callable[[str], list[str]] = lambda _: [],
    ) -> None:
        self._compile = compile_grammar
        self._token_of = token_of
        self._warnings = warnings

    def of(self, job: Prepare, reading: Reading) -> str:
        """Return the grammar of an answer, empty for none. Raises Refusal naming the member at fault."""
        param, grammar = self._written(job, reading)
        if grammar:
            self._check(param, grammar, job)
        return grammar

    def ignored(self, job: Prepare, grammar: str) -> list[str]:
        """Return the places of the keywords that a lenient schema's grammar leaves out."""
        if job.params.json_schema is None or not job.params.lenient:
            return []
        return left_out(self._warnings(grammar), job.params.json_schema)

    def _check(self, param: str, grammar: str, job: Prepare) -> None:
        """Compile a grammar; raises Refusal."""
        if len(grammar) > _MOST_CHARACTERS and param != "grammar":
            raise _too_large(param, f"its grammar has {len(grammar):,} characters, the limit is {_MOST_CHARACTERS:,}")
        try:
            self._compile(job.owner, grammar)
        except ConstraintError as error:
            schema = job.params.json_schema if param == "json_schema" else None
            place = None if schema is None else place_of(error.error, schema)
            where = {} if place is None else {"place": place}
            raise Refusal("invalid_params", param=param, why=str(error), **where) from error

    def _written(self, job: Prepare, reading: Reading) -> tuple[str, str]:
        if job.params.grammar is not None:
            try:
                return "grammar", as_lark(parse(job.params.grammar))
            except GrammarError as error:
                raise Refusal("invalid_params", param="grammar", why=error.problem, line=error.line) from error
        if job.params.json_schema is not None:
            if is_too_wide([job.params.json_schema]):
                raise _too_large("json_schema", TOO_WIDE)
            schema, lenient = normalized(job.params.json_schema), job.params.lenient
            _check_numbers("json_schema", "", schema)
            alone = schema_as_lark(schema, lenient=lenient)
            if job.chat is None or (family := chosen(job, reading)) is None:
                return "json_schema", alone
            self._check("json_schema", alone, job)
            answer = _or_untagged(closed(schema), job.chat, family)
            return "tools", self._tool_call(job.chat, reading, embedded(answer, lenient=lenient))
        if job.chat is not None and job.chat.tool_choice not in ("auto", "none"):
            return "tools", self._tool_call(job.chat, reading)
        return "", ""

    def _tool_call(self, chat: Chat, reading: Reading, answer: str | None = None) -> str:
        """Return the grammar of the calls of a chat, or of an answer in their place; raises Refusal."""
        if reading.tools is None:
            raise Refusal("model_unavailable", lacks="tools")
        choice = chat.tool_choice
        functions = [replace(tool.function, parameters=normalized(tool.function.parameters)) for tool in chat.tools]
        for place, function in enumerate(functions):
            _check_numbers("tools", f"/{place}/function/parameters", function.parameters)
        if isinstance(choice, NamedTool):
            functions = [function for function in functions if function.name == choice.name]
        if is_too_wide([function.parameters for function in functions]):
            raise _too_large("tools", TOO_WIDE)
        one = isinstance(choice, NamedTool) or not chat.parallel
        return tool_call_grammar(reading.tools, functions, one=one, token_of=self._token_of, answer=answer)


def chosen(job: Prepare, reading: Reading) -> Family | None:
    """Return the family of the calls that a model may choose in place of an answer by a schema; None if it may not.

    It may not if only a header, or the names of its members, tell a call from an answer.
    """
    chat = job.chat
    if job.params.json_schema is None or reading.tools is None or chat is None or not chat.tools:
        return None
    family = FAMILIES[reading.tools]
    return family if chat.tool_choice == "auto" and family.header is None and not family.is_whole else None


def _or_untagged(schema: dict[str, Any], chat: Chat, family: Family) -> dict[str, Any]:
    """Return a schema that takes calls without tags too, which small models of some families write.

    It is the schema itself if the family has none, or if a reference in it leads elsewhere than to its definitions.
    """
    references = [each["$ref"] for _, each in schemas_in(schema) if "$ref" in each]
    if not family.untagged or not all(str(each).startswith(_DEFINED) for each in references):
        return schema
    name, arguments = family.keys
    call = {
        "type": "object",
        "properties": {name: {"enum": [tool.function.name for tool in chat.tools]}, arguments: {"type": "object"}},
        "required": [name, arguments],
        "additionalProperties": False,
    }
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {"anyOf": [{key: value for key, value in schema.items() if key not in definitions}, call], **definitions}


def _check_numbers(param: str, before: str, schema: dict[str, Any]) -> None:
    """Raise Refusal for a number that no answer can have exactly; `before` is the place of the normalized schema."""
    if (found := inexact(schema)) is not None:
        place, why = found
        raise Refusal("invalid_params", param=param, why=why, place=before + place)


def _too_large(param: str, reason: str) -> Refusal:
    return Refusal("invalid_params", param=param, why=f"the schema is too large: {reason}")
