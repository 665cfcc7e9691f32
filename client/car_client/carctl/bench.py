"""`carctl bench`: how fast the daemon answers when several requests run at once, alone or beside another server."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TypeVar

import msgspec

from car_client.carctl.failure import WrongUse
from car_client.client import Client
from car_protocol.socket_path import SYSTEM_SOCKET

T = TypeVar("T")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    from car_client.carctl.load.endpoint import parse_url
    from car_client.carctl.load.lengths import Lengths, parse_lengths

    usual = Lengths(64, 64)
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--at-once", type=several(int), default=[], metavar="N,...", help="1, 2, 4 ... and the capacity by default"
    )
    load.add_argument(
        "--rate", type=several(float), default=[], metavar="R,...", help="requests a second, at moments of chance"
    )
    parser.add_argument(
        "--requests", type=positive(int), metavar="N", help="in each round (4 times as many as at once; 20 for a rate)"
    )
    parser.add_argument(
        "--prompt-tokens", type=said(parse_lengths), default=usual, metavar="N|N-M", help="about, of each prompt (64)"
    )
    parser.add_argument(
        "--max-tokens", type=said(parse_lengths), default=usual, metavar="N|N-M", help="of each answer (64)"
    )
    parser.add_argument("--priority", choices=["latency_critical", "throughput"], help="the class of all requests")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of lengths, texts and moments (1)")
    parser.add_argument("--model", metavar="NAME", help="instead of the default model")
    parser.add_argument(
        "--compare", type=said(parse_url), metavar="URL", help="a server of completions, asked the same in turn"
    )
    parser.add_argument("--compare-model", metavar="NAME", help="what that server calls the model")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each round")
    parser.add_argument("--png", metavar="FILE", help="draw throughput and times over the rounds")


def run(client: Client, options: Namespace) -> None:
    """Measure round by round, on connections of their own."""
    import asyncio

    from car_client.carctl.bench_plan import daemon_endpoint, tokens_per_word, workloads
    from car_client.carctl.bench_rounds import Peer, Round, rounds
    from car_client.carctl.bench_table import footer, heading, lines

    draw = _chart() if options.png else None
    # The model is loaded with this, and only then has a capacity.
    per_word = tokens_per_word(client, options.model)
    plan = workloads(options, client.read_capacity(options.model).capacity, per_word)
    card = daemon_endpoint(SYSTEM_SOCKET if options.system else options.socket)
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
        from car_client.carctl.bench_chart import draw
    except ModuleNotFoundError as error:
        raise WrongUse("--png needs matplotlib: pip install 'card-daemon[plot]'") from error
    return draw


def said(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser whose ValueError's message argparse shows."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r}: {error}") from error

    return read


def positive(kind: type[T]) -> Callable[[str], T]:
    """Return what reads one number above 0."""
    wanted = "whole number" if kind is int else "number"

    def read(text: str) -> T:
        try:
            number: T = kind(text)  # type: ignore[call-arg]  # int or float, which take text
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no {wanted}") from None
        if not 0 < number < float("inf"):  # type: ignore[operator]  # and which are numbers
            raise ArgumentTypeError(f"{text!r} has to be more than 0")
        return number

    return read


def several(kind: type[T]) -> Callable[[str], list[T]]:
    """Return what reads numbers above 0 between commas."""
    one = positive(kind)
    return lambda text: [one(number) for number in text.split(",")]
