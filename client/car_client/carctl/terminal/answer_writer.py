"""An answer as text: thinking dimmed on a terminal and left out of pipes, tool calls as JSON lines; its figures."""

from collections.abc import Iterable
from typing import TextIO

import msgspec

from car_client.carctl.terminal.text import duration, is_styled, rate, visible
from car_client.results import Answer, Chunk, OneAnswer, ToolCallDelta


def speed(answer: Answer) -> str:
    """Return an answer's tokens, times and rates."""
    usage, timings = answer.usage, answer.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    # The first token comes out of the prefill.
    decoded = max(0, usage.completion_tokens - 1)
    parts = [
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached{_rate(computed, timings.prefill_ms)})",
        f"{usage.completion_tokens} generated{_rate(decoded, timings.decode_ms)}",
        f"queue {duration(timings.queue_ms / 1000)}",
        f"first token {duration(timings.ttft_ms / 1000)}",
        f"total {duration(timings.total_ms / 1000)}",
        f"{_ends(answer)}, seed {answer.seed}",
    ]
    return "; ".join(parts)


def _ends(answer: Answer) -> str:
    """Return the reason of the end, or of several answers each different one."""
    reasons: list[str | None] = [each.finish_reason for each in answer.answers or ()] or [answer.finish_reason]
    return "+".join(dict.fromkeys(map(str, reasons)))


def _rate(tokens: int, ms: float) -> str:
    return f", {rate(tokens * 1000 / ms)} tokens/s" if tokens and ms else ""


_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerWriter:
    """Writes an answer piece by piece, and ends it with exactly one line end."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._terminal = output.isatty()
        self._styled = is_styled(output)
        self.begun = False  # whether any text was written
        self._thinking = False  # whether the last text was thinking
        self._call: ToolCallDelta | None = None  # the last piece of the call whose line is begun
        self._line_ends = ""  # received and not written: they may be the last of the answer

    def write(self, piece: Chunk | Answer | OneAnswer) -> None:
        """Write a piece at once, except for trailing line ends."""
        if piece.reasoning and self._terminal:
            self._switch(thinking=True)
            self._put(piece.reasoning)
        if piece.text:
            self._switch(thinking=False)
            self._put(piece.text)
        for call in _calls(piece):
            self._write_call(call)
        self._output.flush()

    def end(self) -> None:
        """Write the final line end."""
        self._end_call()
        self._style(_PLAIN if self._thinking else "")
        self._thinking = False
        self._output.write("\n")
        self._output.flush()

    def _write_call(self, piece: ToolCallDelta) -> None:
        """Write a piece of a call; its line is ended by what follows."""
        if self._call is None or self._call.index != piece.index:
            self._switch(thinking=False)
            self._line_ends = "\n" if self.begun else ""
            self._put(f'{{"id":{_quoted(piece.id)},"function":{{"name":{_quoted(piece.name)},"arguments":"')
        self._put(_quoted(piece.arguments)[1:-1])
        self._call = piece

    def _end_call(self) -> None:
        if self._call is not None:
            invalid = f',"invalid":{_quoted(self._call.invalid)}' if self._call.invalid else ""
            self._put(f'"}},"type":"function"{invalid}}}')
            self._call, self._line_ends = None, "\n"

    def _switch(self, *, thinking: bool) -> None:
        self._end_call()
        if thinking == self._thinking:
            return
        self._style(_DIM if thinking else _PLAIN)
        self._thinking = thinking
        if self.begun:
            self._line_ends = "\n\n"

    def _put(self, text: str) -> None:
        text = self._line_ends + (visible(text) if self._terminal else text)
        body = text.rstrip("\n")
        self._line_ends = text[len(body) :]
        if body:
            self.begun = True
            self._output.write(body)

    def _style(self, code: str) -> None:
        if self._styled:
            self._output.write(code)


def _calls(piece: Chunk | Answer | OneAnswer) -> Iterable[ToolCallDelta]:
    """Return the pieces of calls; a whole call is one piece."""
    if isinstance(piece, Chunk):
        return piece.tool_calls or ()
    return [
        ToolCallDelta(
            index=index,
            id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
            invalid=call.invalid or None,
        )
        for index, call in enumerate(piece.tool_calls or ())
    ]


def _quoted(text: str | None) -> str:
    return msgspec.json.encode(text or "").decode()
