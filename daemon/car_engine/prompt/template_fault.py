"""The words for a chat template that failed: jinja's own message and the template's line."""

from traceback import walk_tb

import jinja2

_MOST_CHARACTERS = 300
# The file name of frames that jinja makes for the lines of a template without a file.
_FILE = "<template>"


def template_fault(error: Exception, mark: str = "") -> str:
    """Return the message of a failed compilation or rendering, without marks, after the line where that is known."""
    message = str(error) or ("it takes too much memory" if isinstance(error, MemoryError) else type(error).__name__)
    message = message.replace(mark, "")[:_MOST_CHARACTERS] if mark else message[:_MOST_CHARACTERS]
    line = _line(error)
    return message if line is None else f"line {line}: {message}"


def _line(error: Exception) -> int | None:
    if isinstance(error, jinja2.TemplateSyntaxError):
        # Its text is the message with the template's line, which may be long.
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILE]
    return lines[-1] if lines else None
