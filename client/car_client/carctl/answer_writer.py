"""An answer as text on a terminal or in a pipe: thinking dimmed, tool calls as JSON lines."""

from collections.abc import Iterable
from typing import TextIO

import msgspec

from car_client.carctl.terminal import is_styled, visible
from car_protocol.answer import Answer, Chunk
from car_protocol.conversation import ToolCall

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerWriter:
    """Writes an answer as it comes and ends it with one line end, whatever the model wrote.

    Thinking shows on a terminal alone: a pipe gets what the model answered.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._terminal = output.isatty()
        self._styled = is_styled(output)
        # Mutable state: whether anything was written, what kind of text it was, and line ends that may turn out
        # to be the last of their kind.
        self.begun = False
        self._thinking = False
        self._held = ""

    def write(self, piece: Chunk | Answer) -> None:
        """Write a piece at once, but for the line ends at its end."""
        if piece.reasoning and self._terminal:
            self._switch(thinking=True)
            self._put(piece.reasoning)
        if piece.text:
            self._switch(thinking=False)
            self._put(piece.text)
        self._put_calls(piece.tool_calls or ())
        self._output.flush()

    def end(self) -> None:
        """Write the line end."""
        self._style(_PLAIN if self._thinking else "")
        self._thinking = False
        self._output.write("\n")
        self._output.flush()

    def _switch(self, *, thinking: bool) -> None:
        if thinking == self._thinking:
            return
        self._style(_DIM if thinking else _PLAIN)
        self._thinking = thinking
        if self.begun:
            self._held = "\n\n"

    def _put(self, text: str) -> None:
        text = self._held + (visible(text) if self._terminal else text)
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if body:
            self.begun = True
            self._output.write(body)

    def _put_calls(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            self._switch(thinking=False)
            self._held = "\n" if self.begun else ""
            self._put(msgspec.json.encode(call).decode())

    def _style(self, code: str) -> None:
        if self._styled:
            self._output.write(code)
