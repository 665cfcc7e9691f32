"""`carctl embed` and `carctl tokenize`: texts as vectors and as tokens, one JSON array a line."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice

import msgspec

from car_client.carctl.request import read_exactly
from car_client.client import Client
from car_protocol.embed import MAX_TEXTS


def add_embed_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `embed`."""
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="- alone reads a text from every line of standard input"
    )
    parser.add_argument("--model", metavar="NAME", help="instead of the default model")
    parser.add_argument("--raw", action="store_true", help="the vectors as they are, not of length 1")


def embed(client: Client, options: Namespace) -> None:
    """Print a vector for every text."""
    texts = _lines() if options.texts == ["-"] else iter(options.texts)
    while some := list(islice(texts, MAX_TEXTS)):
        found = client.embed(some, model=options.model, normalize=not options.raw)
        for vector in found.embeddings:
            _print(vector)


def add_tokenize_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `tokenize`."""
    parser.add_argument("text", metavar="TEXT", help="- reads it from standard input, to its last byte")
    parser.add_argument("--model", metavar="NAME", help="instead of the default model")
    parser.add_argument("--add-special", action="store_true", help="with the tokens that begin and end a text")
    parser.add_argument("--parse-special", action="store_true", help="special tokens in the text are such")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--count", action="store_true", help="only how many there are")
    form.add_argument("--pieces", action="store_true", help="a line for every token, with its text")


def tokenize(client: Client, options: Namespace) -> None:
    """Print the tokens of a text."""
    text = read_exactly(options.text)
    flags = {"add_special": options.add_special, "parse_special": options.parse_special}
    tokens = client.tokenize(text, model=options.model, **flags)
    if options.count:
        print(len(tokens))
    elif options.pieces:
        for token in tokens:
            _print([token, client.detokenize([token], model=options.model, special=True)])
    else:
        _print(tokens)


def _lines() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield line.decode().removesuffix("\n")


def _print(value: object) -> None:
    print(msgspec.json.encode(value).decode())
