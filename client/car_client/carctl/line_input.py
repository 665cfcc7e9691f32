"""Lines that a person types: edited with prompt_toolkit where it is installed."""

import sys
from collections.abc import Callable, Sequence

ReadLine = Callable[[], str]


def line_reader(prompt: str, words: Sequence[str]) -> ReadLine:
    """Return what reads one line, raising EOFError at the end; `words` complete a line's first word."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input
    try:
        return _edited(prompt, words)
    except ModuleNotFoundError:
        return lambda: plain_line(prompt)


def plain_line(prompt: str) -> str:
    """Read one line without editing; whatever ends it ends the line on the screen."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        raise


def _edited(prompt: str, words: Sequence[str]) -> ReadLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import InMemoryHistory

    # The lines are prompts, which are kept nowhere but in memory.
    session: PromptSession[str] = PromptSession(
        prompt,
        history=InMemoryHistory(),
        completer=WordCompleter(list(words), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt
