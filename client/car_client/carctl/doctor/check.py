"""The result of one check: a level, the facts, and advice."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "fail"]


class CheckResult(NamedTuple):
    """One line of `carctl doctor`; `advice` is empty where nothing is to be done."""

    level: Level
    subject: str
    facts: str
    advice: str = ""

    def line(self) -> str:
        """Return the result as one line."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.level:<5}{self.subject:<12}{self.facts}{advice}"
