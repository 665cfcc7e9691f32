"""The grammar that binds an answer: the client's own, its JSON schema's, or that of a tool call it asked for."""

from collections.abc import Callable

from car_daemon.engine.frames import Chat, Prepare, Reading
from car_daemon.engine.grammar.constraint import ConstraintError
from car_daemon.engine.grammar.gbnf import parse
from car_daemon.engine.grammar.lark import as_lark
from car_daemon.engine.grammar.schema import as_lark as schema_as_lark
from car_daemon.engine.grammar.schema import is_too_wide
from car_daemon.engine.grammar.tree import GrammarError
from car_daemon.engine.output.forced import forced_call
from car_daemon.engine.refusal import Refusal
from car_protocol.conversation import NamedTool

# Definitions that refer to each other in a chain are compiled by recursion: so long a chain fits the stack.
_MOST_CHARACTERS = 256 * 1024


class Forms:
    """Writes and checks grammars; `compile` raises ConstraintError, `token_of` finds a control token by its text."""

    def __init__(self, compile_grammar: Callable[[str], None], token_of: Callable[[str], int | None]) -> None:
        self._compile = compile_grammar
        self._token_of = token_of

    def of(self, job: Prepare, reading: Reading) -> str:
        """Return the grammar that binds an answer, empty for none. Raises Refusal naming the member at fault."""
        param, grammar = self._written(job, reading)
        if len(grammar) > _MOST_CHARACTERS and param != "grammar":
            raise _too_large(param)
        if grammar:
            try:
                self._compile(grammar)
            except ConstraintError as error:
                raise Refusal("invalid_params", param=param, why=str(error)) from error
        return grammar

    def _written(self, job: Prepare, reading: Reading) -> tuple[str, str]:
        if job.grammar is not None:
            return "grammar", _from_gbnf(job.grammar)
        if job.json_schema is not None:
            if is_too_wide([job.json_schema]):
                raise _too_large("json_schema")
            return "json_schema", schema_as_lark(job.json_schema)
        if job.chat is not None and job.chat.tool_choice not in ("auto", "none"):
            return "tools", self._forced(job.chat, reading)
        return "", ""

    def _forced(self, chat: Chat, reading: Reading) -> str:
        if reading.tools is None:
            raise Refusal("model_unavailable", lacks="tools")
        choice = chat.tool_choice
        functions = [tool.function for tool in chat.tools]
        if isinstance(choice, NamedTool):
            functions = [function for function in functions if function.name == choice.name]
        if is_too_wide([function.parameters for function in functions]):
            raise _too_large("tools")
        return forced_call(reading.tools, functions, one=isinstance(choice, NamedTool), token_of=self._token_of)


def _too_large(param: str) -> Refusal:
    return Refusal("invalid_params", param=param, why="the schema is too large")


def _from_gbnf(text: str) -> str:
    try:
        return as_lark(parse(text))
    except GrammarError as error:
        raise Refusal("invalid_params", param="grammar", why=error.problem, line=error.line) from error
