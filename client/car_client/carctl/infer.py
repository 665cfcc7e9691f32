"""`carctl infer`: one answer, on the terminal or into a pipe, streamed."""

import secrets
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

from car_client.calls import traced
from car_client.carctl.failure import WrongUse
from car_client.carctl.media import add_media_arguments, question
from car_client.carctl.request import add_request_arguments, add_system_argument, conversation, options_of, read_text
from car_client.carctl.terminal.answer_writer import AnswerWriter, speed
from car_client.carctl.terminal.text import dimmed
from car_client.carctl.view.json_output import print_document, typed
from car_client.client import Client
from car_client.errors import CardError, ModelUnavailable
from car_client.options import InferOptions
from car_client.results import Answer, OneAnswer
from car_protocol.infer import SEEDS

T = TypeVar("T")
# The member `prompt` or `messages` of the request.
Question = dict[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    add_request_arguments(parser)
    add_media_arguments(parser)
    parser.add_argument("-n", type=int, metavar="N", help="print N answers: the first as it comes, then the others")
    form = parser.add_mutually_exclusive_group()
    add_system_argument(form)
    form.add_argument("--suffix", metavar="TEXT", help="fill the gap between PROMPT and this text")
    form.add_argument("--raw", action="store_true", help="send the bare prompt, without the chat template")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--no-stream", action="store_true", help="print the answer in one piece, when it is done")
    output.add_argument("--json", action="store_true", help="print the answer object as JSON")
    parser.add_argument("--stats", action="store_true", help="print tokens and times on standard error")


def run(client: Client, options: Namespace) -> None:
    """Write the answer to standard output."""
    members = options_of(options)
    if options.media and (options.raw or options.suffix is not None):
        raise WrongUse("images and sounds are parts of a conversation: leave --raw and --suffix out")
    if options.n is not None:
        members["n"] = options.n
    if members.get("n", 1) != 1 and not members.get("reproducible"):
        # The first answer's heading names its seed before the daemon's result could.
        members.setdefault("seed", secrets.randbelow(SEEDS))
    if options.json:
        result = _with_question(options, lambda prompt: client.call("infer", traced({**prompt, **members})))
        print_document(result)
        answer = typed(result, Answer)
    elif options.no_stream:
        answer = _with_question(options, lambda prompt: client.infer(**prompt, **members))
        _write(answer)
    else:
        answer = _streamed(client, options, members)
    if options.stats:
        print(speed(answer), file=sys.stderr)


def _write(answer: Answer) -> None:
    """Write an answer, or several below headings."""
    several = answer.answers or []
    for index, each in enumerate(several):
        _write_heading(index, len(several), answer.seed)
        _write_one(each)
    if not several:
        _write_one(answer)


def _write_heading(index: int, answers: int, seed: int) -> None:
    """Write the heading of one of several answers, with the seed that gives it alone."""
    heading = f"--- answer {index + 1} of {answers}, seed {(seed + index) % SEEDS} ---"
    print(dimmed(heading, sys.stdout), flush=True)


def _write_one(answer: Answer | OneAnswer) -> None:
    writer = AnswerWriter(sys.stdout)
    writer.write(answer)
    writer.end()


def _streamed(client: Client, options: Namespace, members: InferOptions) -> Answer:
    """Write an answer as it comes; of several the first one, and the others when all are done."""
    writer = AnswerWriter(sys.stdout)

    def write(prompt: Question) -> Answer:
        with client.infer_stream(**prompt, **members) as stream:
            first = next(stream, None)
            if (n := members.get("n", 1)) != 1:
                _write_heading(0, n, members.get("seed", 0))
            for chunk in chain(() if first is None else (first,), stream):
                if not chunk.index:
                    writer.write(chunk)
        assert stream.answer
        return stream.answer

    try:
        answer = _with_question(options, write)
    except KeyboardInterrupt:
        writer.end()
        raise
    except CardError:
        if writer.begun:
            writer.end()
        raise
    writer.end()
    for index, each in enumerate(answer.answers or ()):
        if index:
            _write_heading(index, len(answer.answers or ()), answer.seed)
            _write_one(each)
    return answer


def _with_question(options: Namespace, send: Callable[[Question], T]) -> T:
    """Send the prompt as a conversation, or bare if the daemon answers that the model has no chat template."""
    prompt = read_text(options.prompt)
    if options.suffix is not None:
        return send({"prompt": prompt, "suffix": options.suffix})
    if not options.raw:
        try:
            return send({"messages": conversation(options.system_message, question(prompt, options.media))})
        except ModelUnavailable as error:
            if error.data.get("lacks") != "chat_template" or options.system_message is not None or options.media:
                raise
    return send({"prompt": prompt})
