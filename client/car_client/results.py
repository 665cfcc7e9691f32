"""The objects that calls return: the protocol's own, and an answer whose text is always a string."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from car_protocol import answer as wire
from car_protocol import decide
from car_protocol.answer import Chunk, ToolCallDelta, joined_calls
from car_protocol.capacity import Capacity
from car_protocol.models import Defaults, Model, ModelDetails
from car_protocol.status import ConnectionStatus, ModelStatus, SequenceStatus, Status, WaitingStatus

__all__ = [
    "Answer",
    "Capacity",
    "Chunk",
    "ConnectionStatus",
    "Decision",
    "Defaults",
    "Model",
    "ModelDetails",
    "ModelStatus",
    "OneAnswer",
    "SequenceStatus",
    "Status",
    "ToolCallDelta",
    "WaitingStatus",
    "joined",
]

T = TypeVar("T")
A = TypeVar("A", "Answer", "OneAnswer")


class OneAnswer(wire.OneAnswer, frozen=True, kw_only=True):
    """One of several answers; in that of a stream the pieces are joined."""

    text: str = ""
    """The text without thoughts; empty if there is none."""


class Answer(wire.Answer, frozen=True, kw_only=True):
    """The answer of `infer`; that of a stream has the same members, its pieces joined."""

    text: str = ""
    """The text without thoughts; empty if there is none."""
    answers: list[OneAnswer] | None = None  # type: ignore[assignment]  # nothing writes to a list of a frozen object
    """With `n` above 1: each answer's own members, which are left out above."""


class Decision(decide.Decision, frozen=True, kw_only=True):
    """The answers of `decide`: `decision["team"].choice` is that of the question with this name."""

    def __getitem__(self, name: str | int) -> Any:
        """Return the answer to the question with this name, or at this place; raises KeyError or IndexError."""
        if isinstance(name, int):
            return self.answers[name]
        found = next((answer for answer in self.answers if answer.name == name), None)
        if found is None:
            raise KeyError(name)
        return found


def joined(answer: Answer, chunks: Sequence[Chunk]) -> Answer:
    """Return the answer of a stream with the contents of its chunks."""
    if answer.answers is None:
        return _with_chunks(answer, chunks)
    of_answer: list[list[Chunk]] = [[] for _ in answer.answers]
    for chunk in chunks:
        of_answer[chunk.index or 0].append(chunk)
    return replace(answer, answers=list(map(_with_chunks, answer.answers, of_answer)))


def _with_chunks(answer: A, chunks: Sequence[Chunk]) -> A:
    return replace(
        answer,
        text="".join(chunk.text for chunk in chunks),
        reasoning="".join(chunk.reasoning or "" for chunk in chunks) or None,
        tool_calls=joined_calls(piece for chunk in chunks for piece in chunk.tool_calls or ()) or None,
        tokens=_concatenated(chunk.tokens for chunk in chunks),
        logprobs=_concatenated(chunk.logprobs for chunk in chunks),
    )


def _concatenated(lists: Iterable[list[T] | None]) -> list[T] | None:
    given = [each for each in lists if each is not None]
    return [item for each in given for item in each] if given else None
