"""`carctl chat`: a conversation on the terminal, and the commands that change it."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from car_client.carctl.failure import Unanswered, WrongUse, explain
from car_client.carctl.media import Kind, Part, UnreadableMedia, add_media_arguments, question, read_part
from car_client.carctl.models.suggestions import GUIDE, HINT
from car_client.carctl.request import (
    Messages,
    add_request_arguments,
    add_system_argument,
    conversation,
    nearest,
    options_of,
)
from car_client.carctl.terminal.answer_writer import AnswerWriter, speed
from car_client.carctl.terminal.keyboard import line_reader, on_interrupt
from car_client.carctl.terminal.text import dimmed
from car_client.client import Client
from car_client.errors import CardError, RequestCancelled
from car_client.options import InferOptions, Turn


class Conversation:
    """The turns so far, with the model and the system message of the next request."""

    def __init__(self, model: str | None, system: str | None) -> None:
        self.model = model  # changed by /model
        self.system = system  # changed by /system
        self.media: list[Part] = []  # images and sounds of the next question
        self._turns: Messages = []

    def with_question(self, text: str) -> Messages:
        """Return the messages of a request: the turns so far and a question, which takes the images and sounds."""
        asked, self.media = question(text, self.media), []
        return conversation(self.system, *self._turns, asked)

    def add(self, asked: Turn, answer: str) -> None:
        """Add a question and its answer, which may be cut off."""
        self._turns += [asked, Turn(role="assistant", content=answer)]

    def reset(self) -> None:
        """Remove all turns, and the images and sounds of the next question."""
        self._turns, self.media = [], []

    def save(self, file: Path) -> int:
        """Write the conversation as JSON to a new file; return the number of turns. Raises OSError and ValueError."""
        messages = conversation(self.system, *self._turns)
        document = msgspec.json.encode({"model": self.model, "messages": messages})
        with file.open("xb") as output:
            output.write(msgspec.json.format(document, indent=2) + b"\n")
        return len(self._turns)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    add_request_arguments(parser)
    add_media_arguments(parser)
    add_system_argument(parser)
    parser.add_argument("--stats", action="store_true", help="print tokens and times after every answer")


def run(client: Client, options: Namespace) -> None:
    """Answer line by line until the end of the input."""
    if options_of(options).get("n", 1) != 1:
        raise WrongUse("a chat goes on from one answer: leave n out, or use carctl infer -n")
    client.connect()
    conversation = Conversation(options.model, options.system_message)
    conversation.media = options.media
    chat = ChatSession(client, conversation, options_of(options), options.stats)
    read = line_reader("> ", [f"/{name}" for name in COMMANDS])
    if sys.stdin.isatty():
        _note("Ctrl-C cancels an answer, Ctrl-D quits, /help lists the commands")
        if options.model == GUIDE or (options.model is None and _default_name(client) == GUIDE):
            _note(HINT)
    while (line := _line(read)) is not None:
        chat.handle(line)
    if chat.failure is not None and not sys.stdin.isatty():
        raise Unanswered(chat.failure)


class ChatSession:
    """Answers lines and obeys the commands among them; an error is printed and the conversation goes on."""

    def __init__(self, client: Client, conversation: Conversation, options: InferOptions, stats: bool) -> None:
        self.client = client
        self.conversation = conversation
        self._options = options
        self._stats = stats
        self.failure: CardError | None = None  # the last one

    def handle(self, line: str) -> None:
        """Answer a line, or run the command that it holds."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                name, _, argument = line[1:].partition(" ")
                if command := COMMANDS.get(name):
                    _note(command.act(self, argument.strip()))
                else:
                    print(f"unknown command /{name}{nearest(name, COMMANDS)}; /help lists the commands")
            elif line.strip():
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except CardError as error:
            self.failure = error
            print(f"carctl: {explain(error)}", file=sys.stderr)

    def _answer(self, question: str) -> None:
        conversation, writer = self.conversation, AnswerWriter(sys.stdout)
        members: InferOptions = {**self._options, **({"model": conversation.model} if conversation.model else {})}
        messages = conversation.with_question(question)
        stream = self.client.infer_stream(messages=messages, **members)
        text = ""
        try:
            with on_interrupt(stream.cancel), stream:
                for chunk in stream:
                    text += chunk.text
                    writer.write(chunk)
        except RequestCancelled:
            pass
        except KeyboardInterrupt:
            # The second Ctrl-C: the daemon did not answer the cancellation.
            self.client.close()
        finally:
            if writer.begun:
                writer.end()
        if text:
            conversation.add(messages[-1], text)
        if stream.answer is None:
            _note("cancelled")
        elif self._stats:
            _note(speed(stream.answer))


class ChatCommand(NamedTuple):
    """A command of the chat: its argument, its line of help, and its action, which returns a note for the user."""

    argument: str
    summary: str
    act: Callable[[ChatSession, str], str]


def _default_name(client: Client) -> str | None:
    return next((model.name for model in client.models() if model.default), None)


def _line(read: Callable[[], str]) -> str | None:
    """Return the next line, empty after Ctrl-C on a terminal, None at the end of the input."""
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


def _model(chat: ChatSession, name: str) -> str:
    names = [model.name for model in chat.client.models()]
    if not name:
        return "  ".join(names)
    if name not in names:
        return f"unknown model {name!r}{nearest(name, names)}; /model lists them"
    chat.conversation.model = name
    return f"{name} answers from now on"


def _system(chat: ChatSession, text: str) -> str:
    chat.conversation.system = text or None
    return "the system message is set" if text else "the system message is removed"


def _image(chat: ChatSession, path: str) -> str:
    return _attach(chat, "image", path)


def _sound(chat: ChatSession, path: str) -> str:
    return _attach(chat, "audio", path)


def _attach(chat: ChatSession, kind: Kind, path: str) -> str:
    if not path:
        return "name the file: /image FILE or /sound FILE"
    try:
        chat.conversation.media.append(read_part(kind, os.path.expanduser(path)))
    except UnreadableMedia as error:
        return f"not attached: {error}"
    return f"{path} goes with the next question"


def _reset(chat: ChatSession, _: str) -> str:
    chat.conversation.reset()
    return "the conversation is empty"


def _save(chat: ChatSession, name: str) -> str:
    if not name:
        return "name the file: /save FILE"
    try:
        # Path.expanduser would raise for a user that does not exist.
        turns = chat.conversation.save(Path(os.path.expanduser(name)))
    except OSError as error:
        return f"not saved: {(error.strerror or 'the file cannot be written').lower()}"
    except ValueError:
        return "not saved: the name holds a null byte"
    return f"{turns} turns are in {name}"


def _help(_: ChatSession, __: str) -> str:
    lines = [f"/{name} {command.argument}".ljust(16) + command.summary for name, command in COMMANDS.items()]
    return "\n".join([*lines, "//...".ljust(16) + "a question that begins with a slash"])


COMMANDS = {
    "model": ChatCommand("NAME", "answer with another model; without a name, list the models", _model),
    "system": ChatCommand("TEXT", "set the system message; without a text, remove it", _system),
    "image": ChatCommand("FILE", "send an image with the next question", _image),
    "sound": ChatCommand("FILE", "send a sound with the next question", _sound),
    "reset": ChatCommand("", "forget the conversation", _reset),
    "save": ChatCommand("FILE", "write the conversation as JSON to a new file", _save),
    "help": ChatCommand("", "list the commands", _help),
}
