"""`carctl bench`: tokens per second and latencies under load, of the daemon alone or beside another server."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from car_client.carctl.failure import WrongUse
from car_client.client import Client
from car_client.paths import connect, usable_paths

if TYPE_CHECKING:
    from car_client.carctl.bench.bar_picture import Groups

T = TypeVar("T")
_STDOUT = "-"
# Half a minute for each app alone, three minutes for all together.
_MINUTES = 6


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    from car_client.carctl.bench.completions import parse_url
    from car_client.carctl.bench.house_apps import APPS, parse_apps
    from car_client.carctl.bench.workload import parse_lengths

    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--at-once",
        type=several(int),
        default=[],
        metavar="N,...",
        help="at once (1, 2, 4 ... and the capacity)",
    )
    load.add_argument(
        "--rate", type=several(float), default=[], metavar="R,...", help="requests a second, as Poisson arrivals"
    )
    load.add_argument(
        "--house", action="store_true", help="what each of several apps keeps of its speed when all are there"
    )
    parser.add_argument("--url", type=checked(parse_url), metavar="URL", help="a house on a server in place of card")
    parser.add_argument("--apps", type=checked(parse_apps), metavar="NAME,...", help=f"of a house ({','.join(APPS)})")
    parser.add_argument("--minutes", type=positive(float), metavar="M", help="of a house on one server (6)")
    parser.add_argument(
        "--requests", type=positive(int), metavar="N", help="requests in a round (4 for each at once; 20 for a rate)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=checked(parse_lengths),
        metavar="N|N-M",
        help="of a prompt, about (64)",
    )
    parser.add_argument("--max-tokens", type=checked(parse_lengths), metavar="N|N-M", help="of an answer (64)")
    parser.add_argument("--priority", choices=["latency_critical", "throughput"], help="the class of all requests")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of lengths, texts and arrivals (1)")
    parser.add_argument("--model", metavar="NAME", help="a model in place of the default one")
    parser.add_argument(
        "--compare", type=checked(parse_url), metavar="URL", help="a completion server that gets the same load in turn"
    )
    parser.add_argument("--compare-model", metavar="NAME", help="the name of the model on that server")
    parser.add_argument(
        "--json",
        nargs="?",
        const=_STDOUT,
        metavar="FILE",
        help="print, or write to a file, a line of JSON for each round",
    )
    parser.add_argument("--png", metavar="FILE", help="draw the figures as bars")


def run(client: Client, options: Namespace) -> None:
    """Measure a house, or round by round, on new connections."""
    draw = _drawing(options.png) if options.png else None
    if options.compare_model and not options.compare:
        raise WrongUse("--compare-model goes with --compare")
    if options.json and options.png and os.path.realpath(options.json) == os.path.realpath(options.png):
        raise WrongUse("--json and --png name one file: give each a file of its own")
    for file in {options.json, options.png} - {None, _STDOUT}:
        _check_place(Path(file))
    if options.house:
        if options.requests or options.prompt_tokens or options.max_tokens or options.priority:
            raise WrongUse("--requests, --prompt-tokens, --max-tokens and --priority do not go with --house")
        groups, title = _house(options)
    elif options.url or options.apps or options.minutes:
        raise WrongUse("--url, --apps and --minutes go with --house")
    else:
        groups, title = _rounds(client, options)
    if draw:
        draw(title, groups, options.png)


def _rounds(client: Client, options: Namespace) -> tuple["Groups", str]:
    import asyncio

    from car_client.carctl.bench.rounds import ComparedServer, LoadRound, rounds, tokens_per_word, workloads
    from car_client.carctl.bench.table import TITLE, bars, footer, heading, lines

    # Tokenizing loads the model, whose capacity is known only then.
    per_word = tokens_per_word(client, options.model)
    models = client.models()
    capacity = next(each.capacity for each in models if (each.name == options.model if options.model else each.default))
    plan = workloads(options, capacity, per_word)
    peer = ComparedServer(options.compare, options.compare_model) if options.compare else None

    async def measure() -> list[LoadRound]:
        found = []
        async for each in rounds(_socket(options), peer, plan):
            found.append(each)
            _show(options, lines(each), [each] if options.json == _STDOUT else [])
        return found

    _show(options, [heading()])
    found = asyncio.run(measure())
    _show(options, [footer(found)])
    _write(options, found)
    return bars(found), TITLE


def _house(options: Namespace) -> tuple["Groups", str]:
    import asyncio

    from car_client.carctl.bench.completions import LoadError
    from car_client.carctl.bench.generator import connect as connect_to
    from car_client.carctl.bench.house_apps import APPS
    from car_client.carctl.bench.house_figures import house_figures
    from car_client.carctl.bench.house_run import House, HouseServer
    from car_client.carctl.bench.house_table import TITLE, bars, table

    def server(name: str, address: str, model: str | None) -> HouseServer:
        common = {"temperature": 0, "model": model} if model else {"temperature": 0}
        return HouseServer(name, lambda label: connect_to(address, {**common, "client": label}))

    apps = options.apps or list(APPS.values())
    address = options.url or _socket(options)
    servers = [server(urlsplit(options.url).netloc if options.url else "card", address, options.model)]
    if options.compare:
        servers.append(server(urlsplit(options.compare).netloc, options.compare, options.compare_model))
    house = House(servers, 60 * (options.minutes or _MINUTES), options.seed)
    found = [house_figures(stay, apps) for stay in asyncio.run(house.run(apps))]
    for each in found:
        _show(options, table(each, house.left_out), [each] if options.json == _STDOUT else [])
    _write(options, found)
    if house.gone:
        phase, why = next(iter(house.gone.items()))
        raise LoadError(f"{phase}: at the end no request was answered: {why}")
    return bars(found), TITLE


def _check_place(file: Path) -> None:
    """Raise WrongUse for a file that cannot be written: before the measurement, not after it."""
    if not file.parent.is_dir():
        raise WrongUse(f"cannot write {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise WrongUse(f"cannot write {file}: it is a folder, or not yours to write")


def _socket(options: Namespace) -> str:
    with connect(usable_paths(options.socket)) as probe:
        return str(probe.getpeername())


def _show(options: Namespace, lines: Iterable[str], objects: Sequence[Struct] = ()) -> None:
    """Print lines, or objects if standard output is for JSON."""
    for line in map(_json, objects) if options.json == _STDOUT else lines:
        print(line, flush=True)


def _write(options: Namespace, found: Sequence[Struct]) -> None:
    if options.json and options.json != _STDOUT:
        try:
            Path(options.json).write_text("".join(f"{_json(each)}\n" for each in found), encoding="utf-8")
        except OSError as error:
            raise WrongUse(f"cannot write {options.json}: {(error.strerror or 'no reason given').lower()}") from error


def _json(found: Struct) -> str:
    return msgspec.json.encode(found).decode()


def _drawing(path: str) -> Callable[[str, "Groups", str], None]:
    """Return what draws a picture; raises WrongUse without Pillow, or for a form of picture that it does not know."""
    try:
        from car_client.carctl.bench.bar_picture import check_form, draw
    except ModuleNotFoundError as error:
        raise WrongUse("--png needs Pillow: pip install 'card-daemon[images]'") from error
    check_form(path)
    return draw


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser for argparse, which shows the message of its ValueError."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r}: {error}") from error

    return read


def positive(kind: type[T]) -> Callable[[str], T]:
    """Return a parser of one number above 0, a million at most."""
    expected = "whole number" if kind is int else "number"

    def read(text: str) -> T:
        try:
            number: T = kind(text)  # type: ignore[call-arg]  # int or float, which take text
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a {expected}") from None
        # More is a slip of the keys: a million minutes are two years.
        if not 0 < number <= 1_000_000:  # type: ignore[operator]  # and which are numbers
            raise ArgumentTypeError(f"{text!r}: give a number above 0, 1,000,000 at most")
        return number

    return read


def several(kind: type[T]) -> Callable[[str], list[T]]:
    """Return a parser of numbers above 0, separated by commas."""
    one = positive(kind)
    return lambda text: [one(number) for number in text.split(",")]
