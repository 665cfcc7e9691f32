"""`carctl infer`: an answer on the terminal or into a pipe, as it comes."""

import sys
from argparse import ArgumentParser, Namespace
from typing import cast, get_args

from car_client.carctl.terminal import AnswerWriter
from car_client.client import Client
from car_client.errors import CardError, ModelUnavailable
from car_client.options import InferOptions
from car_client.stream import Stream
from car_protocol.infer import Priority

_OPTIONS = ("model", "max_tokens", "temperature", "seed", "stop", "priority", "timeout_ms")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    parser.add_argument("--model", metavar="NAME", help="instead of the default model")
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (repeatable)")
    parser.add_argument("--raw", action="store_true", help="the bare prompt, without the chat template")
    parser.add_argument("--priority", choices=get_args(Priority))
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="over queue, prefill and decode")


def run(client: Client, options: Namespace) -> None:
    """Stream the answer to standard output."""
    prompt = _prompt(options.prompt)
    writer = AnswerWriter(sys.stdout)
    try:
        _answer(client, prompt, options, writer)
    except KeyboardInterrupt:
        writer.end()
        raise
    except CardError:
        if writer.begun:
            writer.end()
        raise
    writer.end()


def _answer(client: Client, prompt: str, options: Namespace, writer: AnswerWriter) -> None:
    """Ask as a conversation; a model without a chat template, which only it can tell, gets the bare prompt."""
    given = cast(InferOptions, {name: value for name in _OPTIONS if (value := getattr(options, name)) is not None})
    if not options.raw:
        try:
            _write(client.infer_stream(messages=[{"role": "user", "content": prompt}], **given), writer)
        except ModelUnavailable as error:
            if error.data.get("lacks") != "chat_template":
                raise
        else:
            return
    _write(client.infer_stream(prompt, **given), writer)


def _write(stream: Stream, writer: AnswerWriter) -> None:
    with stream:
        for chunk in stream:
            writer.write(chunk.text)


def _prompt(argument: str) -> str:
    if argument != "-":
        return argument
    # The line end that `echo` adds is nobody's question.
    return sys.stdin.buffer.read().decode().removesuffix("\n")
