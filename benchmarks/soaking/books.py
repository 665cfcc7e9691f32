"""Requests and their ends, as the clients saw them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from car_protocol.methods import METHODS

Json = dict[str, Any]
# No client of the soak may ever be told one of these.
_DEFECTS = frozenset({"internal_error", "parse_error", "invalid_request", "method_not_found", "model_unavailable"})


@dataclass
class Books:
    """Requests that count in the daemon's totals by how they ended, all others as one figure, and what was wrong."""

    sent: int = 0
    results: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    left: int = 0
    others: int = 0
    violations: list[str] = field(default_factory=list)

    def send(self, method: str) -> None:
        """Enter a request."""
        if METHODS[method].infers:
            self.sent += 1
        else:
            self.others += 1

    def answer(self, method: str, response: Json) -> None:
        """Enter a terminal response."""
        error = response.get("error")
        if error is not None and error["data"]["reason"] in _DEFECTS:
            self.violate(f"{method}: {error}")
        if not METHODS[method].infers:
            return
        if error is None:
            self.results += 1
        else:
            self.errors[error["data"]["reason"]] += 1

    def leave(self, method: str) -> None:
        """Enter a request whose client went away."""
        self.left += METHODS[method].infers

    def violate(self, what: str) -> None:
        """Enter what must not happen."""
        print(f"VIOLATION {what}", flush=True)
        self.violations.append(what)

    def check(self, condition: bool, what: str) -> None:
        """Enter a violation unless the condition holds."""
        if not condition:
            self.violate(what)

    def compare(self, totals: Json) -> None:
        """Compare with the totals of a daemon that is idle; what was left may have ended in any way, or not arrived."""
        answered = self.results + sum(self.errors.values())
        self.check(answered + self.left == self.sent, f"{self.sent} sent, {answered} answered, {self.left} left")
        self.check(answered <= totals["received"] <= self.sent, f"{answered} answered of {self.sent}, {totals}")
        completed = totals["completed"]
        self.check(self.results <= completed <= self.results + self.left, f"{self.results} results, {totals}")
        cancelled = self.errors["cancelled"]
        self.check(cancelled <= totals["cancelled"] <= cancelled + self.left, f"{cancelled} cancelled, {totals}")
