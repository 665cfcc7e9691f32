"""Messages and exit codes of failed commands."""

from car_client.carctl.access import reach_advice
from car_client.carctl.terminal.text import one_line
from car_client.errors import BadSocketPath, CardError, DaemonUnavailable, RequestError, RequestTimeout

USAGE = 2
FAILED = 1
NO_DAEMON = 69
LATER = 75
INTERRUPTED = 130
# A daemon that says nothing for so long hangs. A promise for a daemon that its socket starts: it answers within this.
ANSWER_S = 60.0
_ADVICE = {
    "method_not_found": "the daemon may be older than this command",
    "overloaded": "try again when the daemon is less busy",
    "deadline_exceeded": "give it a longer --timeout-ms",
    "draining": "try again with the next daemon",
    "model_unavailable": "`carctl models list` shows the models and what they can",
    "engine_lost": "try again",
    "context_exceeded": "shorten it; `carctl doctor` has the contexts that fit",
    "quota": "an administrator raises it: carctl people limit",
    "not_permitted": "run this as the daemon's own user or root",
}


class WrongUse(CardError):
    """The arguments are not usable; the exit code is 2."""


class Reported(CardError):
    """The command failed and has printed the error itself; `retryable` if the same may succeed another time."""

    def __init__(self, why: str = "", *, retryable: bool = False) -> None:
        super().__init__(why)
        self.retryable = retryable


class Unanswered(CardError):
    """Lines of a chat were not answered, each with a message of its own; the exit code is that of the last reason."""

    def __init__(self, reason: CardError) -> None:
        super().__init__("not every line was answered")
        self.reason = reason


def exit_code(error: CardError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Unanswered):
        return exit_code(error.reason)
    if isinstance(error, BadSocketPath | WrongUse):
        return USAGE
    if isinstance(error, DaemonUnavailable | RequestTimeout):
        return NO_DAEMON
    return LATER if isinstance(error, RequestError | Reported) and error.retryable else FAILED


def explain(error: CardError) -> str:
    """Return one line: the error, and what to do."""
    text = str(error)
    if isinstance(error, RequestError):
        parts = [f"{error.reason or error.code}: {error}"]
        if error.retry_after_ms is not None:
            parts.append(f"try again in {error.retry_after_ms} ms")
        elif error.reason in _ADVICE:
            parts.append(_ADVICE[error.reason])
        text = "; ".join(parts)
    elif isinstance(error, RequestTimeout):
        text = "a daemon accepts connections and says nothing: it hangs or was stopped; `carctl doctor` looks at it"
    elif isinstance(error, DaemonUnavailable) and error.tried:
        text = f"{error}; {reach_advice(error.tried)}"
    return one_line(text)
