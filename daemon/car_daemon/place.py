"""Where an exception came from, without its text and its values, which may hold input."""

import traceback


def place_of(error: BaseException) -> str:
    """Return the module and line that raised an exception."""
    last = None
    for last in traceback.walk_tb(error.__traceback__):  # noqa: B007 - only the last one counts
        pass
    return "unknown" if last is None else f"{last[0].f_globals.get('__name__')}:{last[1]}"


def named(error: BaseException) -> str:
    """Return the kind of an exception and its place."""
    return f"{type(error).__name__} at {place_of(error)}"
