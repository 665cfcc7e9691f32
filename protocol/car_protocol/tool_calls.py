"""Tool calls out of their pieces."""

from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

from car_protocol.conversation import FunctionCall, Invalid, ToolCall


class CallPiece(Protocol):
    """A piece of a call; members that say nothing are empty or None."""

    @property
    def index(self) -> int:
        """The call's place among the calls of its answer."""
        ...

    @property
    def id(self) -> str | None:
        """The call's id, in its first piece."""
        ...

    @property
    def name(self) -> str | None:
        """The function's name, in the first piece."""
        ...

    @property
    def arguments(self) -> str | None:
        """The next part of the arguments."""
        ...

    @property
    def invalid(self) -> Invalid | None:
        """The fault of the call, in its last piece."""
        ...


def joined_calls(pieces: Iterable[CallPiece]) -> list[ToolCall]:
    """Return the calls that pieces in their order make up."""
    return [_joined(list(of_call)) for _, of_call in groupby(pieces, key=lambda piece: piece.index)]


def _joined(pieces: list[CallPiece]) -> ToolCall:
    called = FunctionCall(pieces[0].name or "", "".join(piece.arguments or "" for piece in pieces))
    return ToolCall(pieces[0].id or "", called, invalid=pieces[-1].invalid or None)
