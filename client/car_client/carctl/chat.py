"""`carctl chat`: a conversation on the terminal."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from car_client.carctl.answer_writer import AnswerWriter
from car_client.carctl.conversation import Conversation
from car_client.carctl.failure import Unanswered, explain
from car_client.carctl.interrupt import on_interrupt
from car_client.carctl.line_input import line_reader
from car_client.carctl.request import add_request_arguments, add_system_argument, nearest, options_of
from car_client.carctl.speed import speed
from car_client.carctl.terminal import dimmed
from car_client.client import Client
from car_client.errors import CardError, RequestCancelled
from car_client.options import InferOptions
from car_protocol.answer import Answer


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    add_request_arguments(parser)
    add_system_argument(parser)
    parser.add_argument("--stats", action="store_true", help="tokens and times after every answer")


def run(client: Client, options: Namespace) -> None:
    """Answer line by line until the end of the input."""
    client.connect()
    chat = Chat(client, Conversation(options.model, options.system_message), options_of(options), options.stats)
    read = line_reader("> ", [f"/{name}" for name in COMMANDS])
    if sys.stdin.isatty():
        _note("Ctrl-C cancels an answer, Ctrl-D quits, /help shows the commands")
    while (line := _line(read)) is not None:
        chat.take(line)
    if chat.failure is not None and not sys.stdin.isatty():
        raise Unanswered(chat.failure)


class Chat:
    """What happens with each line."""

    def __init__(self, client: Client, conversation: Conversation, options: InferOptions, stats: bool) -> None:
        self.client = client
        self.conversation = conversation
        self._options = options
        self._stats = stats
        # Mutable state: the last error.
        self.failure: CardError | None = None

    def take(self, line: str) -> None:
        """Answer a line or do what it commands; an error is told and the conversation goes on."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._command(line)
            elif line.strip():
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except CardError as error:
            self.failure = error
            print(f"carctl: {explain(error)}", file=sys.stderr)

    def _answer(self, question: str) -> None:
        conversation, writer = self.conversation, AnswerWriter(sys.stdout)
        asked: InferOptions = {**self._options, **({"model": conversation.model} if conversation.model else {})}
        stream = self.client.infer_stream(messages=conversation.with_question(question), **asked)
        said = ""
        try:
            with on_interrupt(stream.cancel), stream:
                for chunk in stream:
                    said += chunk.text
                    writer.write(chunk)
        except RequestCancelled:
            pass
        except KeyboardInterrupt:
            # The second one: the daemon did not answer to the first.
            self.client.close()
        finally:
            if writer.begun:
                writer.end()
        if said:
            conversation.add(question, said)
        self._tell(stream.answer)

    def _tell(self, answer: Answer | None) -> None:
        if answer is None:
            _note("cancelled")
        elif self._stats:
            _note(speed(answer))

    def _command(self, line: str) -> None:
        name, _, argument = line[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            print(f"there is no /{name}{nearest(name, COMMANDS)}; /help shows the commands")
        else:
            _note(command.act(self, argument.strip()))


class ChatCommand(NamedTuple):
    """A command of the chat: its argument, its line of help, and what does it and returns what to say."""

    argument: str
    summary: str
    act: Callable[[Chat, str], str]


def _line(read: Callable[[], str]) -> str | None:
    """Return the next line, empty where it was given up with Ctrl-C on a terminal, None at the end."""
    try:
        return read()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        return ""
    except EOFError:
        return None


def _note(text: str) -> None:
    if text:
        print(dimmed(text, sys.stdout), flush=True)


def _model(chat: Chat, name: str) -> str:
    names = [model.name for model in chat.client.models()]
    if not name:
        return "  ".join(names)
    if name not in names:
        return f"there is no model {name!r}{nearest(name, names)}"
    chat.conversation.model = name
    return f"{name} answers from now on"


def _system(chat: Chat, text: str) -> str:
    chat.conversation.system = text or None
    return "the system message is set" if text else "there is no system message any more"


def _reset(chat: Chat, _: str) -> str:
    chat.conversation.reset()
    return "the conversation begins anew"


def _save(chat: Chat, name: str) -> str:
    if not name:
        return "/save needs a file"
    try:
        # Unlike Path.expanduser it takes a user that there is not for a folder of that name.
        turns = chat.conversation.save(Path(os.path.expanduser(name)))
    except OSError as error:
        return f"not saved: {(error.strerror or 'the file cannot be written').lower()}"
    except ValueError:
        return "not saved: no file can have that name"
    return f"{turns} turns are in {name}"


def _help(_: Chat, __: str) -> str:
    lines = [f"/{name} {command.argument}".ljust(16) + command.summary for name, command in COMMANDS.items()]
    return "\n".join([*lines, "//...".ljust(16) + "a question that begins with a slash"])


COMMANDS = {
    "model": ChatCommand("NAME", "another model answers; without a name, which there are", _model),
    "system": ChatCommand("TEXT", "the system message; without a text, none", _system),
    "reset": ChatCommand("", "forget the conversation", _reset),
    "save": ChatCommand("FILE", "write the conversation as JSON to a new file", _save),
    "help": ChatCommand("", "these lines", _help),
}
