"""Location of an exception, without its text and its values, which may contain input."""

import traceback


def place_of(error: BaseException) -> str:
    """Return the module and line that raised an exception; `unknown` if it was never raised."""
    last = None
    for last in traceback.walk_tb(error.__traceback__):  # noqa: B007 - only the last frame is used
        pass
    return "unknown" if last is None else f"{last[0].f_globals.get('__name__')}:{last[1]}"


def named(error: BaseException) -> str:
    """Return the type of an exception and its place."""
    return f"{type(error).__name__} at {place_of(error)}"
