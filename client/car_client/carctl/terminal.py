"""Text for terminals: nothing in it can drive one."""

from typing import TextIO

WIDTH = 80
_LINE = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_TEXT = {code: shown for code, shown in _LINE.items() if chr(code) not in "\n\t"}


def visible(text: str) -> str:
    """Return the text with its control characters shown as symbols, line ends and tabs excepted."""
    return text.translate(_TEXT)


def one_line(text: str) -> str:
    """Return the text as one line, its control characters shown as symbols."""
    return text.translate(_LINE)


def clipped(text: str) -> str:
    """Return one line of at most WIDTH characters."""
    line = one_line(text)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


class AnswerWriter:
    """Writes an answer as it comes and ends it with one line end, whatever the model wrote."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._terminal = output.isatty()
        # Mutable state: whether anything was written, and line ends that may turn out to be the last.
        self.begun = False
        self._held = ""

    def write(self, text: str) -> None:
        """Write a piece at once, but for the line ends at its end."""
        text = self._held + (visible(text) if self._terminal else text)
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if body:
            self.begun = True
            self._output.write(body)
            self._output.flush()

    def end(self) -> None:
        """Write the line end."""
        self._output.write("\n")
        self._output.flush()
