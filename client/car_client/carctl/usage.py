"""`carctl usage`: what requests took, by person, app, model or day, as a table, as JSON or as CSV."""

import csv
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from datetime import date, timedelta

from msgspec.structs import asdict

from car_client.carctl.terminal.text import Span, duration, one_line
from car_client.carctl.view.json_output import print_document, typed
from car_client.carctl.view.status_tables import Listing
from car_client.client import Client
from car_client.errors import CardError
from car_protocol.usage import DEFAULT_DAYS, NOT_KEPT, Amounts, UsageReport, UsageRow


class Incomplete(CardError):
    """The report lacks rows, which the ledger does not give or which are too many; what came was printed."""


_DIMENSIONS = ("person", "app", "model", "day")
_MOST_DAYS = 36_500


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--by",
        choices=_DIMENSIONS,
        action="append",
        help="what tells rows apart, also several times (default: person)",
    )
    parser.add_argument(
        "--since",
        type=_day,
        metavar="DAY|Nd",
        help=f"the first day, as 2026-01-31, or the last N days (default: {DEFAULT_DAYS}d)",
    )
    parser.add_argument("--until", type=_day, metavar="DAY", help="the last day (default: today)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")


def run(client: Client, options: Namespace) -> None:
    """Print the caller's usage, for administrators that of all."""
    params = {"by": list(dict.fromkeys(options.by or ["person"]))}
    if options.since is not None:
        params["since"] = options.since
    if options.until is not None:
        params["until"] = options.until
    document = client.call("daemon/usage", params)
    report = typed(document, UsageReport)
    if options.json:
        print_document(document)
    elif options.csv:
        _print_csv(report, params["by"])
    else:
        _print_table(report, params["by"])
    if report.why == NOT_KEPT:
        print(f"carctl: {report.why}", file=sys.stderr)
    elif report.why is not None:
        raise Incomplete(report.why)


def _print_table(report: UsageReport, by: list[str]) -> None:
    listing = Listing(
        *by, "requests", "failed", "prompt", "cached", "computed", "answers", "device", "waited", spare=()
    )
    for row in [*report.rows, report.total]:
        names = [_name(row, each) for each in by] if row is not report.total else ["total", *[""] * (len(by) - 1)]
        listing.add(*map(Span, names), *(Span(figure(row)) for figure in _FIGURES))
    for line in listing.lines(sys.maxsize, len):
        print("".join(span.text for span in line).rstrip())
    print(f"{report.since} to {report.until}" + (f"; {report.left_out} rows left out" if report.left_out else ""))


_FIGURES: tuple[Callable[[UsageRow], str], ...] = (
    lambda row: f"{row.completed + row.failed + row.cancelled + row.rejected:,}",
    lambda row: f"{row.failed + row.rejected:,}",
    lambda row: f"{row.prompt_tokens:,}",
    lambda row: f"{row.cached_tokens:,}",
    lambda row: f"{row.computed_tokens:,}",
    lambda row: f"{row.completion_tokens:,}",
    lambda row: duration(row.device_s),
    lambda row: duration(row.waited_s),
)


def _print_csv(report: UsageReport, by: list[str]) -> None:
    amounts = Amounts.__struct_fields__
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*by, *amounts])
    for row in report.rows:
        values = asdict(row)
        writer.writerow([*(_cell(_name(row, each)) for each in by), *(values[name] for name in amounts)])
    if report.left_out:
        raise Incomplete(f"{report.left_out:,} rows are left out: ask for fewer days by --since and --until")


def _cell(text: str) -> str:
    """Return a text that is no formula for a spreadsheet and no command for a terminal: clients choose their labels."""
    text = one_line(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) and text != "-" else text


def _name(row: UsageRow, dimension: str) -> str:
    """Return the value of a dimension; a user that is no person is its uid."""
    if dimension == "person":
        return row.person if row.person is not None else f"uid {row.uid}"
    return str(getattr(row, dimension) or "-")


def _day(text: str) -> str:
    """Return a day as the protocol has it."""
    digits = text.removesuffix("d")
    if digits != text and digits.isascii() and digits.isdigit() and len(digits) < 10 and 0 < int(digits) <= _MOST_DAYS:
        # The daemon has its own today, which the time zone of this shell may put a day off.
        return (date.today() - timedelta(days=int(digits) - 1)).isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ArgumentTypeError("give a day as 2026-01-31, or a number of days as 30d") from None
