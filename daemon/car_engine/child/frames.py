"""The frames of a child: each job has one answer."""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_base.ipc.types import Tags


class ChildSettings(Struct, frozen=True):
    """What all children of an engine have in common: the kernel's sandbox."""

    sandbox: bool


class OpenTemplate(Struct, frozen=True, tag=True):
    """Compile a chat template and try it with a short chat: a first job of each child.

    Later jobs have its `name`. `begin`, `end` and `specials` are the texts of tokens; `header` begins a message in the
    model's tool syntax.
    """

    name: str
    source: str
    begin: str
    end: str
    specials: list[str]
    thinking: Tags | None = None
    header: str | None = None


class Render(Struct, frozen=True, tag=True):
    """Write a chat as text; if the text has more than `most_bytes`, only its size is needed.

    With `typed` the content of messages is a list of parts.
    """

    template: str
    chat: Chat
    most_bytes: int
    typed: bool = False


class Opened(Struct, frozen=True, tag=True):
    """The template can be used; `asking` is the text after a chat that asks for an answer, empty if it has none.

    Later prompts of the chat begin the answer with the first `kept` characters of this text.
    """

    takes_tools: bool
    asking: str = ""
    kept: int = 0


class Invalid(Struct, frozen=True, tag=True):
    """The template cannot be used, with jinja's own reason."""

    why: str


class Segments(Struct, frozen=True, tag=True):
    """The text of a chat: its size in bytes, and its pieces with whether control tokens count in each.

    The text ends `inside` an opened thought, or with the part of a message's header that has `begun`.
    """

    size: int
    pieces: list[tuple[str, bool]] = []
    inside: bool = False
    begun: str = ""


class Declined(Struct, frozen=True, tag=True):
    """The request cannot be prepared: the member at fault, and the reason if it is known."""

    param: str
    why: str | None = None


class Defect(Struct, frozen=True, tag=True):
    """The child failed, by a fault of its own code: the type and the place of the exception."""

    fault: str


Job = OpenTemplate | Render
Answer = Opened | Invalid | Segments | Declined | Defect
_Expected = TypeVar("_Expected", bound=Struct)

decode_job = msgspec.msgpack.Decoder(Job).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
decode_settings = msgspec.msgpack.Decoder(ChildSettings).decode


class ChildFailed(Exception):
    """A child failed by a fault of its own code; the message is the fault."""


def expected(kind: type[_Expected], answer: Answer) -> _Expected:
    """Return an answer of a kind; raises Refusal if the child declined, and ChildFailed for any other answer."""
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, Declined):
        why: dict[str, Any] = {} if answer.why is None else {"why": answer.why}
        raise Refusal("invalid_params", param=answer.param, **why)
    raise ChildFailed(answer.fault if isinstance(answer, Defect) else type(answer).__name__)
