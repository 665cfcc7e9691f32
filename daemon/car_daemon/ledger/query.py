"""The reports of the ledger: what to report, and the error of a file that cannot be used."""

from collections.abc import Sequence
from datetime import date

from msgspec import Struct

from car_protocol.usage import Dimension

FILE_NAME = "usage.db"


class LedgerError(Exception):
    """The file cannot be used; the message says why."""


def date_of(day: int) -> str:
    """Return the date of an ordinal."""
    return date.fromordinal(day).isoformat()


class UsageQuery(Struct, frozen=True):
    """What to report: the dimensions of rows, the first and the last day as ordinals, the identity or all."""

    by: Sequence[Dimension]
    since: int
    until: int
    identity: str | None = None
