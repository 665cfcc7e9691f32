"""A conversation as `carctl chat` keeps it."""

from pathlib import Path

import msgspec

from car_client.carctl.request import Messages, conversation
from car_client.options import Turn


class Conversation:
    """The turns so far, and what every question is asked with."""

    def __init__(self, model: str | None, system: str | None) -> None:
        # Mutable state: all of it, by the commands of the chat.
        self.model = model
        self.system = system
        self._turns: Messages = []

    def with_question(self, text: str) -> Messages:
        """Return the messages that ask the next question."""
        return conversation(self.system, *self._turns, Turn(role="user", content=text))

    def add(self, question: str, answer: str) -> None:
        """Remember a question and what was answered, also where the answer was cut off."""
        self._turns += [Turn(role="user", content=question), Turn(role="assistant", content=answer)]

    def reset(self) -> None:
        """Forget the turns."""
        self._turns = []

    def save(self, file: Path) -> int:
        """Write the conversation as JSON to a new file; returns how many turns it has."""
        messages = conversation(self.system, *self._turns)
        document = msgspec.json.encode({"model": self.model, "messages": messages})
        with file.open("xb") as output:
            output.write(msgspec.json.format(document, indent=2) + b"\n")
        return len(self._turns)
