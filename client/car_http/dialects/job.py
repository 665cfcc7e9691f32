"""A translated request: the daemon's params, and the writer of the answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.errors import encoded, openai_error
from car_http.problems import Problem
from car_protocol.answer import Progress

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"


class Writer(ABC):
    """An answer in a dialect: whole, or piece by piece from `begin` to `end` or `fail`."""

    kind = SSE
    """The content type of the stream."""
    _model = ""

    def name_model(self, model: str) -> None:
        """Set the model's name, if the request left it out or another model stands in."""
        self._model = model

    def begin(self) -> bytes:
        """Return the bytes before all others."""
        return b""

    def progress(self, progress: Progress) -> bytes:
        """Return the bytes that show a place in the queue or the prompt's tokens: a comment, or nothing."""
        return sse.comment(progress)

    @abstractmethod
    def alive(self) -> bytes:
        """Return an event without content, which keeps a silent stream open: some clients count no comments."""

    @abstractmethod
    def chunk(self, chunk: Chunk) -> bytes:
        """Return the bytes of a piece of the answer; calls are whole."""

    @abstractmethod
    def end(self, answer: Answer) -> bytes:
        """Return the bytes that end the answer."""

    def fail(self, problem: Problem) -> bytes:
        """Return the bytes that end a stream with an error."""
        return b"data: " + encoded(openai_error(problem)) + b"\n\n"

    @abstractmethod
    def whole(self, answer: Answer) -> bytes:
        """Return the answer in one piece."""


class Job(Struct, frozen=True):
    """A request for the daemon; `members` names its params as the dialect does, for errors.

    With `claude` the default model answers under a name that is unknown; `left_out` has the vendors' tools without
    which it is answered.
    """

    params: dict[str, Any]
    stream: bool
    writer: Writer
    members: Mapping[str, str]
    claude: bool = False
    left_out: Sequence[str] = ()
