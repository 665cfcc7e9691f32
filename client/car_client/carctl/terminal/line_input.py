"""Lines from the user, edited with prompt_toolkit where it is installed."""

import sys
from collections.abc import Callable, Sequence

ReadLine = Callable[[], str]


def line_reader(prompt: str, words: Sequence[str]) -> ReadLine:
    """Return a function that reads a line, raising EOFError at the end; `words` complete the first word."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import InMemoryHistory
    except ModuleNotFoundError:
        return lambda: plain_line(prompt)
    # The lines are prompts, which are kept in memory only.
    session: PromptSession[str] = PromptSession(
        prompt,
        history=InMemoryHistory(),
        completer=WordCompleter(list(words), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt


def plain_line(prompt: str) -> str:
    """Read one line without editing; after Ctrl-C or Ctrl-D the cursor is on a new line too."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        raise
