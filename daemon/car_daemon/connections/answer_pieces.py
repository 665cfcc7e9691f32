"""Pieces of an answer, merged in their order: for a client that does not read, and for answers in one piece."""

from collections.abc import Iterator
from itertools import chain, groupby

import msgspec

from car_base.ipc.frames import CallDelta, Extra
from car_protocol.answer import Chunk, Logprob, ToolCallDelta, joined_calls
from car_protocol.conversation import ToolCall
from car_protocol.envelope import Id

_encode = msgspec.json.Encoder().encode


class _Piece:
    """The content of one chunk."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.calls: list[CallDelta] = []
        self.tokens: list[int] = []
        self.logprobs: list[Logprob] = []

    def as_chunk(self, request: Id, seq: int, index: int | None) -> Chunk:
        by_call = groupby(self.calls, key=lambda delta: delta.index)
        return Chunk(
            id=request,
            seq=seq,
            index=index,
            text="".join(self.texts),
            reasoning="".join(self.reasoning) or None,
            tool_calls=[_merged(number, list(pieces)) for number, pieces in by_call] or None,
            tokens=self.tokens or None,
            logprobs=self.logprobs or None,
        )


class AnswerPieces:
    """The pieces so far; text or reasoning after a call begins a chunk of its own."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    def __repr__(self) -> str:
        return f"<AnswerPieces count={self.count}>"

    @property
    def count(self) -> int:
        """The number of chunks that the pieces make."""
        return len(self._pieces)

    @property
    def text(self) -> str:
        """All text joined."""
        return "".join(chain.from_iterable(piece.texts for piece in self._pieces))

    @property
    def reasoning(self) -> str:
        """All reasoning joined."""
        return "".join(chain.from_iterable(piece.reasoning for piece in self._pieces))

    @property
    def calls(self) -> list[ToolCall]:
        """The calls, whole."""
        return joined_calls(chain.from_iterable(piece.calls for piece in self._pieces))

    @property
    def tokens(self) -> list[int]:
        """All token ids."""
        return [token for piece in self._pieces for token in piece.tokens]

    @property
    def logprobs(self) -> list[Logprob]:
        """All log-probabilities."""
        return [logprob for piece in self._pieces for logprob in piece.logprobs]

    def add(self, text: str, extra: Extra | None) -> int:
        """Add the output of a step; return roughly how many bytes it has on the wire."""
        if extra is None:
            self._add_text(text)
            return len(_encode(text))
        if extra.reasoning:
            self._before_calls().reasoning.append(extra.reasoning)
        for part in (text, *extra.calls):
            if isinstance(part, str):
                self._add_text(part)
            elif part.id or part.arguments or part.invalid:
                self._last().calls.append(part)
        if extra.tokens or extra.logprobs:
            self._last().tokens += extra.tokens
            self._last().logprobs += extra.logprobs
        return len(_encode((text, extra)))

    def chunks(self, request: Id, seq: int, index: int | None = None) -> Iterator[Chunk]:
        """Yield the pieces as chunks, numbered from `seq` on; `index` is the answer's if there are several."""
        for number, piece in enumerate(self._pieces, seq):
            yield piece.as_chunk(request, number, index)

    def _add_text(self, text: str) -> None:
        if text:
            self._before_calls().texts.append(text)

    def _before_calls(self) -> _Piece:
        """Return the last piece, or a new piece if that has calls."""
        if self._pieces and self._pieces[-1].calls:
            self._pieces.append(_Piece())
        return self._last()

    def _last(self) -> _Piece:
        if not self._pieces:
            self._pieces.append(_Piece())
        return self._pieces[-1]


def _merged(index: int, pieces: list[CallDelta]) -> ToolCallDelta:
    """Return the pieces of one call as one."""
    return ToolCallDelta(
        index=index,
        id=pieces[0].id or None,
        name=pieces[0].name or None,
        arguments="".join(piece.arguments for piece in pieces) or None,
        invalid=pieces[-1].invalid or None,
    )
