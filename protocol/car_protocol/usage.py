"""The ledger of usage: what requests took, summed by day, person, app and model; no prompt, no answer, no id."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from car_protocol.meta import Params, note

Dimension = Literal["day", "person", "app", "model"]
DATE_PATTERN = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\Z"
# Rows of one answer: a year of days, or what a table on a screen has room for several times.
MOST_ROWS = 1000
# A month.
DEFAULT_DAYS = 30
NOT_KEPT = "no ledger is kept: it begins with the first person (carctl people add)"


class UsageParams(Params, frozen=True, kw_only=True):
    """The members by which rows are told apart, and the first and the last day that count."""

    by: Annotated[
        list[Dimension],
        Meta(min_length=1, max_length=4),
        note("what tells rows apart; `person` tells people and users apart"),
    ] = field(default_factory=lambda: ["day"])
    since: Annotated[
        Annotated[str, Meta(pattern=DATE_PATTERN)] | None,
        note(f"the first day that counts, as `2026-01-31`; the last {DEFAULT_DAYS} days if absent"),
    ] = None
    until: Annotated[
        Annotated[str, Meta(pattern=DATE_PATTERN)] | None, note("the last day that counts; today if absent")
    ] = None


class Amounts(Struct, kw_only=True):
    """What requests took. Tokens count as engines compute them: work that is done again counts again."""

    completed: Annotated[int, note("requests that were answered with a result")] = 0
    failed: Annotated[int, note("as in the status: 1002, 1005, 1007 or -32603")] = 0
    cancelled: Annotated[int, note("-32800")] = 0
    rejected: Annotated[int, note("all other errors")] = 0
    prompt_tokens: Annotated[int, note("of the prompts of ended requests")] = 0
    cached_tokens: Annotated[int, note("of prompts, found in the cache")] = 0
    computed_tokens: Annotated[int, note("of prompts, computed")] = 0
    completion_tokens: Annotated[int, note("sampled")] = 0
    decisions: Annotated[int, note("answers of `decide`")] = 0
    texts: Annotated[int, note("texts that were embedded or ranked")] = 0
    device_s: Annotated[float, note("seconds of engines' steps, divided by the tokens in them")] = 0.0
    waited_s: Annotated[float, note("seconds without a sequence")] = 0.0


class UsageRow(Amounts, kw_only=True, omit_defaults=True):
    """The amounts of one group of requests; members that are 0, or by which rows are not told apart, are left out."""

    day: Annotated[str | None, note("of the daemon's time zone")] = None
    person: Annotated[str | None, note("of `[people]`")] = None
    uid: Annotated[int | None, note("of a user that is no person")] = None
    app: Annotated[str | None, note("the label of requests, else their tenant; empty without either")] = None
    model: Annotated[str | None, note("a name of `[models]`")] = None


class UsageReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caller's own rows, for administrators all rows."""

    since: Annotated[str, note("the first day that counts")]
    until: Annotated[str, note("today")]
    total: Annotated[UsageRow, note("the sum of all rows, those left out too")]
    rows: Annotated[list[UsageRow], note("by day, then those with most tokens first")] = field(
        default_factory=lambda: []  # sent also when it is empty: see `Model.aliases`
    )
    left_out: Annotated[int, note(f"rows beyond {MOST_ROWS:,}, which have fewest tokens")] = 0
    why: Annotated[str | None, note("why rows are missing: no ledger is kept, or its file cannot be used")] = None
