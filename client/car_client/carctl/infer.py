"""`carctl infer`: an answer on the terminal or into a pipe, as it comes."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from car_client.calls import traced
from car_client.carctl.answer_writer import AnswerWriter
from car_client.carctl.document import print_document, typed
from car_client.carctl.request import add_request_arguments, add_system_argument, conversation, options_of, read_text
from car_client.carctl.speed import speed
from car_client.client import Client
from car_client.errors import CardError, ModelUnavailable
from car_client.options import Turn
from car_protocol.answer import Answer

T = TypeVar("T")
# What the model is asked: `prompt` or `messages`.
Question = dict[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    add_request_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    add_system_argument(form)
    form.add_argument("--raw", action="store_true", help="the bare prompt, without the chat template")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--no-stream", action="store_true", help="the answer in one piece, when it is done")
    output.add_argument("--json", action="store_true", help="the answer object as it came")
    parser.add_argument("--stats", action="store_true", help="tokens and times on standard error")


def run(client: Client, options: Namespace) -> None:
    """Write the answer to standard output."""
    answer = _way(options)(client, options)
    if options.stats:
        print(speed(answer), file=sys.stderr)


def _way(options: Namespace) -> Callable[[Client, Namespace], Answer]:
    if options.json:
        return _document
    return _whole if options.no_stream else _streamed


def _document(client: Client, options: Namespace) -> Answer:
    asked = options_of(options)
    result = _ask(options, lambda question: client.call("infer", traced({**question, **asked})))
    print_document(result)
    return typed(result, Answer)


def _whole(client: Client, options: Namespace) -> Answer:
    asked = options_of(options)
    answer = _ask(options, lambda question: client.infer(**question, **asked))
    writer = AnswerWriter(sys.stdout)
    writer.write(answer)
    writer.end()
    return answer


def _streamed(client: Client, options: Namespace) -> Answer:
    asked, writer = options_of(options), AnswerWriter(sys.stdout)

    def write(question: Question) -> Answer:
        with client.infer_stream(**question, **asked) as stream:
            for chunk in stream:
                writer.write(chunk)
        assert stream.answer
        return stream.answer

    try:
        answer = _ask(options, write)
    except KeyboardInterrupt:
        writer.end()
        raise
    except CardError:
        if writer.begun:
            writer.end()
        raise
    writer.end()
    return answer


def _ask(options: Namespace, ask: Callable[[Question], T]) -> T:
    """Ask as a conversation; a model without a chat template, which only it can tell, gets the bare prompt."""
    prompt = read_text(options.prompt)
    if not options.raw:
        try:
            return ask({"messages": conversation(options.system_message, Turn(role="user", content=prompt))})
        except ModelUnavailable as error:
            if error.data.get("lacks") != "chat_template" or options.system_message is not None:
                raise
    return ask({"prompt": prompt})
