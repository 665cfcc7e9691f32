"""`carctl bench`: tokens per second and latencies under load, of the daemon alone or beside another server."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TypeVar

import msgspec

from car_client.carctl.failure import WrongUse
from car_client.client import Client
from car_client.paths import connect, usable_paths

T = TypeVar("T")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    from car_client.carctl.bench.completions import parse_url
    from car_client.carctl.bench.workload import Lengths, parse_lengths

    usual = Lengths(64, 64)
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
    parser.add_argument(
        "--requests", type=positive(int), metavar="N", help="requests in a round (4 for each at once; 20 for a rate)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=checked(parse_lengths),
        default=usual,
        metavar="N|N-M",
        help="of a prompt, about (64)",
    )
    parser.add_argument(
        "--max-tokens", type=checked(parse_lengths), default=usual, metavar="N|N-M", help="of an answer (64)"
    )
    parser.add_argument("--priority", choices=["latency_critical", "throughput"], help="the class of all requests")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of lengths, texts and arrivals (1)")
    parser.add_argument("--model", metavar="NAME", help="a model in place of the default one")
    parser.add_argument(
        "--compare", type=checked(parse_url), metavar="URL", help="a completion server that gets the same load in turn"
    )
    parser.add_argument("--compare-model", metavar="NAME", help="the name of the model on that server")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each round")
    parser.add_argument("--png", metavar="FILE", help="draw throughput and times over the rounds")


def run(client: Client, options: Namespace) -> None:
    """Measure round by round, on new connections."""
    import asyncio

    from car_client.carctl.bench.rounds import Peer, Round, rounds, tokens_per_word, workloads
    from car_client.carctl.bench.table import footer, heading, lines

    draw = _chart() if options.png else None
    # Tokenizing loads the model, whose capacity is known only then.
    per_word = tokens_per_word(client, options.model)
    models = client.models()
    capacity = next(each.capacity for each in models if (each.name == options.model if options.model else each.default))
    plan = workloads(options, capacity, per_word)
    with connect(usable_paths(options.socket)) as probe:
        card: str = probe.getpeername()
    peer = Peer(options.compare, options.compare_model) if options.compare else None

    async def measure() -> list[Round]:
        found = []
        async for each in rounds(card, peer, plan):
            found.append(each)
            shown = [msgspec.json.encode(each).decode()] if options.json else lines(each)
            print("\n".join(shown), flush=True)
        return found

    if not options.json:
        print(heading(), flush=True)
    found = asyncio.run(measure())
    if not options.json:
        print(footer(found))
    if draw:
        draw(found, options.png)


def _chart() -> Callable[..., None]:
    try:
        from car_client.carctl.bench.chart import draw
    except ModuleNotFoundError as error:
        raise WrongUse("--png needs matplotlib: pip install 'card-daemon[plot]'") from error
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
    """Return a parser of one number above 0."""
    expected = "whole number" if kind is int else "number"

    def read(text: str) -> T:
        try:
            number: T = kind(text)  # type: ignore[call-arg]  # int or float, which take text
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a {expected}") from None
        if not 0 < number < float("inf"):  # type: ignore[operator]  # and which are numbers
            raise ArgumentTypeError(f"{text!r}: give a number above 0")
        return number

    return read


def several(kind: type[T]) -> Callable[[str], list[T]]:
    """Return a parser of numbers above 0, separated by commas."""
    one = positive(kind)
    return lambda text: [one(number) for number in text.split(",")]
