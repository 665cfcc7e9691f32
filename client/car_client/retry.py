"""The deadline of a call, and whether and when it is sent again."""

import math
import time
from collections.abc import Iterator

from car_client.errors import CardError, ConnectionLost, DeadlineExceeded, RequestError, RequestTimeout

CONNECT_TIMEOUT_S = 5.0
MAX_RETRIES = 2
# The pauses between attempts to connect.
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
# The pauses between attempts of one call, if the daemon names none.
FIRST_PAUSE_S = 0.25
# A call that would have to pause for longer fails at once.
LONGEST_PAUSE_S = 10.0


class Deadline:
    """The moment at which waiting ends, `timeout_s` from now; None waits without end."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float | None:
        """The seconds that are left, never below 0; None without an end."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def remaining_ms(self) -> int | None:
        """The milliseconds that are left, rounded up; None without an end."""
        remaining = self.remaining_s
        return None if remaining is None else math.ceil(remaining * 1000)

    def bound(self, seconds: float) -> float:
        """Return the seconds, or the seconds that are left if these are fewer."""
        remaining = self.remaining_s
        return seconds if remaining is None else min(seconds, remaining)

    def error(self) -> RequestTimeout:
        """Return the error of a call that reached the deadline."""
        return RequestTimeout(f"the daemon sent nothing within {self._timeout_s:g} s; raise `timeout` or ask for less")


NEVER = Deadline(None)


class Retries:
    """The attempts that one call has left; `most` is 0 for calls that are sent once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0

    def pause_s(self, error: CardError, deadline: Deadline) -> float:
        """Return the seconds to pause before the next attempt; raises the error if no attempt is left."""
        pause_s = min(FIRST_PAUSE_S * 2.0**self._made, LONGEST_PAUSE_S)
        if isinstance(error, RequestError) and error.retry_after_ms is not None:
            pause_s = error.retry_after_ms / 1000
        if self._made >= self._most or not is_transient(error) or pause_s > deadline.bound(LONGEST_PAUSE_S):
            raise error
        self._made += 1
        return pause_s


def is_transient(error: CardError) -> bool:
    """Return whether the same call may succeed in a moment; a deadline of its own is over for good."""
    if isinstance(error, RequestError):
        return error.retryable and not isinstance(error, DeadlineExceeded)
    return isinstance(error, ConnectionLost)


def backoff() -> Iterator[float]:
    """Yield the seconds to wait before each attempt to connect, doubling up to LONGEST_DELAY_S."""
    delay = FIRST_DELAY_S
    while True:
        yield delay
        delay = min(2 * delay, LONGEST_DELAY_S)
