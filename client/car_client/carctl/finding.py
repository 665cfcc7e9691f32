"""One thing that was looked at: how it is, and how to mend it."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """A line of the doctor's; `mend` is empty where nothing is to be done."""

    level: Level
    what: str
    how_it_is: str
    mend: str = ""

    def line(self) -> str:
        """Return the finding as one line."""
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.level:<5}{self.what:<12}{self.how_it_is}{mend}"
