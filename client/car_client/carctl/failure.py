"""What a failed command says, and its exit code."""

from car_client.carctl.terminal import one_line
from car_client.errors import BadSocketPath, CardError, DaemonUnavailable, RequestError

USAGE = 2
FAILED = 1
NO_DAEMON = 69
INTERRUPTED = 130
# Members of an error's data that say more than its message.
_FACTS = {
    "overloaded": ("why",),
    "model_unavailable": ("why", "lacks"),
    "context_exceeded": ("prompt_tokens", "max_tokens", "context_tokens"),
    "limit": ("limit", "value"),
}
_ADVICE = {
    "method_not_found": "the daemon may be older than this command",
    "overloaded": "try again when the daemon is less busy",
    "deadline_exceeded": "give it a longer --timeout-ms",
    "draining": "try again with the next daemon",
    "model_unavailable": "`carctl status` shows the models",
    "engine_lost": "try again",
    "context_exceeded": "shorten the prompt or lower --max-tokens",
    "not_permitted": "ask as the daemon's own user or root",
}


class WrongUse(CardError):
    """What was asked for cannot be done here."""


class Unanswered(CardError):
    """Lines of a chat were not answered, as was told at each; the last reason is how the command ends."""

    def __init__(self, why: CardError) -> None:
        super().__init__("not every line was answered")
        self.why = why


def exit_code(error: CardError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Unanswered):
        return exit_code(error.why)
    if isinstance(error, BadSocketPath | WrongUse):
        return USAGE
    return NO_DAEMON if isinstance(error, DaemonUnavailable) else FAILED


def explain(error: CardError) -> str:
    """Return in one line what happened and what to do."""
    return one_line(_text(error))


def _text(error: CardError) -> str:
    if isinstance(error, RequestError):
        return "; ".join([f"{error.reason or error.code}: {error}", *_facts(error), *_advice(error)])
    if isinstance(error, DaemonUnavailable) and error.tried:
        return f"{error}; start it with: card"
    return str(error)


def _facts(error: RequestError) -> list[str]:
    known = [name for name in _FACTS.get(error.reason, ()) if error.data.get(name) is not None]
    return [", ".join(f"{name} {error.data[name]}" for name in known)] if known else []


def _advice(error: RequestError) -> list[str]:
    if error.retry_after_ms is not None:
        return [f"try again in {error.retry_after_ms} ms"]
    return [_ADVICE[error.reason]] if error.reason in _ADVICE else []
