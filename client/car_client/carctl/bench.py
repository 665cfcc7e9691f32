"""`carctl bench`: how fast the daemon answers when several requests run at once."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

import msgspec

from car_client.carctl.figures import duration, rate
from car_client.client import Client
from car_client.options import InferOptions
from car_protocol.socket_path import SYSTEM_SOCKET

if TYPE_CHECKING:
    from car_client.carctl.bench_rounds import Plan, Round

_HEADING = (
    f"{'at once':<9}{'tokens/s':>9}{'each':>8}{'first token':>14}{'slowest':>10}{'between tokens':>17}{'slowest':>10}"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--at-once", type=numbers, default=[], metavar="N,...", help="1, 2, 4 ... and the capacity by default"
    )
    parser.add_argument("--answers", type=positive, default=2, metavar="N", help="one after the other in each lane (2)")
    parser.add_argument("--max-tokens", type=positive, default=64, metavar="N", help="of each answer (64)")
    parser.add_argument("--prompt-repeat", type=positive, default=4, metavar="N", help="length of the prompts (4)")
    parser.add_argument("--model", metavar="NAME", help="instead of the default model")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each round")


def run(client: Client, options: Namespace) -> None:
    """Measure round by round, on a connection of its own."""
    import asyncio

    from car_client.carctl.bench_rounds import Plan

    asked = InferOptions(max_tokens=options.max_tokens, ignore_eos=True, client="carctl bench")
    if options.model:
        asked["model"] = options.model
    asyncio.run(_print_rounds(options, Plan(options.answers, options.prompt_repeat, asked)))


async def _print_rounds(options: Namespace, plan: "Plan") -> None:
    from car_client.carctl.bench_rounds import rounds

    if not options.json:
        print(_HEADING, flush=True)
    async for each in rounds(SYSTEM_SOCKET if options.system else options.socket, options.at_once, plan):
        print(msgspec.json.encode(each).decode() if options.json else line(each), flush=True)


def line(each: "Round") -> str:
    """Return a round as one line under the heading."""
    first, first_slowest = each.first_token_ms / 1000, each.first_token_slowest_ms / 1000
    between, between_slowest = each.between_tokens_ms / 1000, each.between_tokens_slowest_ms / 1000
    return (
        f"{each.at_once:<9}{rate(each.tokens_per_s):>9}{rate(each.each_tokens_per_s):>8}"
        f"{duration(first):>14}{duration(first_slowest):>10}{duration(between):>17}{duration(between_slowest):>10}"
    )


def positive(text: str) -> int:
    """Return a number of at least 1, for argparse."""
    if (number := int(text)) < 1:
        raise ArgumentTypeError("has to be 1 or more")
    return number


def numbers(text: str) -> list[int]:
    """Return numbers between commas, for argparse."""
    return [positive(number) for number in text.split(",")]
