"""The turns of a conversation, its model and its system message."""

from pathlib import Path

import msgspec

from car_client.carctl.media import Part, question
from car_client.carctl.request import Messages, conversation
from car_client.options import Turn


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
