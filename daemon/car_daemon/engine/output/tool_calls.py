"""Tool calls out of an answer, in the styles that models write them."""

import re
from collections.abc import Callable

from car_daemon.engine.output.format import ARGS, CALL_CLOSE, CALL_ID, CALL_OPEN, PYTHON_TAG, TOOL_CALLS, ToolStyle
from car_daemon.engine.output.json_object import read_arguments, read_call, take_object
from car_daemon.engine.output.tape import Steps, Tape
from car_protocol.conversation import FunctionCall, ToolCall

# Text or a call, in the order of the answer.
Part = str | ToolCall
# A name or an id that stands without quotes, of what the names of functions may be made of.
_WORD = re.compile(r"[A-Za-z0-9_.-]*")


class ToolCallReader:
    """Read calls as soon as they are complete; what only begins like one is given back as text."""

    def __init__(self, style: ToolStyle, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        # Mutable state: the text and how far it was read, and what this piece released.
        self._tape = Tape()
        self._parts: list[Part] = []
        self._steps = {"hermes": self._hermes, "llama3": self._llama3, "mistral": self._mistral}[style]()

    def push(self, text: str) -> list[Part]:
        """Take a piece of the answer."""
        self._tape.feed(text)
        return self._advance()

    def finish(self) -> list[Part]:
        """Return what was held back, when no more comes."""
        self._tape.end()
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._steps, None)
        parts, self._parts = self._parts, []
        return parts

    def _hermes(self) -> Steps[None]:
        while (yield from self._tape.copy_until(CALL_OPEN, self._say)):
            yield from self._tape.take_spaces()
            if (yield from self._object()):
                yield from self._tape.take_spaces()
                yield from self._tape.take_literal(CALL_CLOSE)
                yield from self._drop_spaces()
            self._say(self._tape.release())
        self._say(self._tape.release())

    def _llama3(self) -> Steps[None]:
        yield from self._tape.take_spaces()
        yield from self._tape.take_literal(PYTHON_TAG)
        yield from self._tape.take_spaces()
        while (yield from self._object()):
            yield from self._drop_spaces()
            yield from self._separator()
        yield from self._tape.copy_rest(self._say)

    def _separator(self) -> Steps[None]:
        yield from self._tape.take_literal(";")
        yield from self._tape.take_spaces()
        yield from self._tape.take_literal(PYTHON_TAG)
        yield from self._tape.take_spaces()

    def _mistral(self) -> Steps[None]:
        while (yield from self._tape.copy_until(TOOL_CALLS, self._say)):
            yield from self._tape.take_spaces()
            array = yield from self._tape.take_literal("[")
            if (yield from self._array() if array else self._named()):
                yield from self._drop_spaces()
            self._say(self._tape.release())
        self._say(self._tape.release())

    def _array(self) -> Steps[bool]:
        comma = True
        while comma:
            yield from self._tape.take_spaces()
            if not (yield from self._object()):
                return False
            yield from self._tape.take_spaces()
            comma = yield from self._tape.take_literal(",")
        yield from self._tape.take_literal("]")
        return True

    def _named(self) -> Steps[bool]:
        name = yield from self._word()
        if (yield from self._tape.take_literal(CALL_ID)):
            # Not the call's id: models write the same one again.
            yield from self._word()
        yield from self._tape.take_literal(ARGS)
        yield from self._tape.take_spaces()
        arguments = yield from take_object(self._tape)
        return bool(name) and arguments is not None and self._accept(read_arguments(name, arguments))

    def _word(self) -> Steps[str]:
        mark = self._tape.mark()
        yield from self._tape.take_run(_WORD)
        return self._tape.since(mark)

    def _object(self) -> Steps[bool]:
        text = yield from take_object(self._tape)
        return text is not None and self._accept(read_call(text))

    def _accept(self, call: FunctionCall | None) -> bool:
        if call is None:
            return False
        self._tape.drop()
        self._parts.append(ToolCall(self._new_id(), call))
        return True

    def _drop_spaces(self) -> Steps[None]:
        yield from self._tape.take_spaces()
        self._tape.drop()

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(text)
