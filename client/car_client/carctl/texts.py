"""`carctl embed` and `carctl tokenize`: texts as vectors and as tokens, one JSON array a line."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice

import msgspec

from car_client.carctl.request import conversation, read_exactly
from car_client.client import Client
from car_client.options import TokenizeOptions, Turn
from car_protocol.text import MAX_TEXTS


def add_embed_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `embed`."""
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a lone - reads a text from every line of standard input"
    )
    parser.add_argument("--model", metavar="NAME", help="a model in place of the default one")
    parser.add_argument("--raw", action="store_true", help="do not scale the vectors to length 1")


def embed(client: Client, options: Namespace) -> None:
    """Print a vector for every text."""
    texts: Iterator[str] = iter(options.texts)
    if options.texts == ["-"]:
        texts = (line.decode().removesuffix("\n") for line in sys.stdin.buffer)
    while some := list(islice(texts, MAX_TEXTS)):
        found = client.embed(some, model=options.model, normalize=not options.raw)
        for vector in found.embeddings:
            _print(vector)


def add_tokenize_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `tokenize`."""
    parser.add_argument("text", metavar="TEXT", help="the text; - reads standard input, with its last newline")
    parser.add_argument("--model", metavar="NAME", help="a model in place of the default one")
    parser.add_argument("--add-special", action="store_true", help="add the tokens that begin and end a text")
    parser.add_argument("--parse-special", action="store_true", help="read special tokens that are written in the text")
    parser.add_argument("--chat", action="store_true", help="the prompt of a conversation of this one message")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--count", action="store_true", help="print only the number of tokens")
    form.add_argument("--pieces", action="store_true", help="print a line for every token, with its text")


def tokenize(client: Client, options: Namespace) -> None:
    """Print the tokens of a text, or of the conversation that it begins."""
    text = read_exactly(options.text)
    members: TokenizeOptions = {
        "model": options.model,
        "add_special": options.add_special,
        "parse_special": options.parse_special,
    }
    messages = conversation(None, Turn(role="user", content=text)) if options.chat else None
    alone = None if options.chat else text
    if options.count:
        print(client.count_tokens(alone, messages=messages, **members))
        return
    tokens = client.tokenize(alone, messages=messages, **members)
    if options.pieces:
        for token in tokens:
            _print([token, client.detokenize([token], model=options.model, special=True)])
    else:
        _print(tokens)


def _print(value: object) -> None:
    print(msgspec.json.encode(value).decode())
