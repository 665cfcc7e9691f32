"""What a request's sampled tokens say: reasoning, text up to a stop string, and tool calls."""

import codecs
from typing import NamedTuple

from car_daemon.engine.output.reasoning import ReasoningSplit, Split
from car_daemon.engine.output.stop_search import StopSearch
from car_daemon.engine.output.tool_calls import ToolCallReader
from car_protocol.conversation import ToolCall


class Output(NamedTuple):
    """What one token released."""

    text: str
    reasoning: str
    calls: list[ToolCall]


class OutputReader:
    """Bytes of tokens into what may be sent; stop strings count in the text alone, and a call ends one's search."""

    def __init__(
        self,
        stops: list[str],
        thinking: ReasoningSplit | None,
        calls: ToolCallReader | None,
        *,
        keep: bool = False,
    ) -> None:
        self._plain = not stops and thinking is None and calls is None
        # Mutable state: bytes of an incomplete character, what each part holds back, and of kept thoughts the text that
        # may become a part of one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thinking = thinking
        self._calls = calls
        self._keep = keep and thinking is not None
        self._open = ""
        self._stops = StopSearch(stops)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found."""
        return self._stops.stopped_by

    def push(self, piece: bytes) -> Output:
        """Take one token's bytes."""
        text = self._decoder.decode(piece)
        if self._plain:
            return Output(text, "", [])
        return self._read(text, ended=False)

    def finish(self) -> Output:
        """Return what was held back, when no more tokens come."""
        return self._read(self._decoder.decode(b"", final=True), ended=True)

    def _read(self, text: str, *, ended: bool) -> Output:
        if self.stopped_by is not None:
            return Output("", "", [])
        split = self._split(text, ended=ended)
        kept = self._kept(text, split.text, ended=ended) if self._keep else ""
        # What only was a thought calls nothing.
        said, calls = self._until_stop([kept, *self._parse(split.text, ended=ended)])
        return Output(said + (self._stops.finish() if ended else ""), "" if self._keep else split.reasoning, calls)

    def _kept(self, text: str, answer: str, *, ended: bool) -> str:
        """Return what stands before the answer, with its tags, as soon as it is known to be no part of that."""
        assert self._thinking is not None
        self._open += text
        if not (answer or ended or self._thinking.thinking):
            return ""
        thought, self._open = self._open[: len(self._open) - len(answer)], ""
        return thought

    def _split(self, text: str, *, ended: bool) -> Split:
        if self._thinking is None:
            return Split("", text)
        reasoning, answer = self._thinking.push(text)
        if ended:
            rest = self._thinking.finish()
            return Split(reasoning + rest.reasoning, answer + rest.text)
        return Split(reasoning, answer)

    def _parse(self, text: str, *, ended: bool) -> list[str | ToolCall]:
        if self._calls is None:
            return [text]
        parts = self._calls.push(text)
        return parts + self._calls.finish() if ended else parts

    def _until_stop(self, parts: list[str | ToolCall]) -> tuple[str, list[ToolCall]]:
        """Return the text and the calls in front of a stop string."""
        said, calls = "", list[ToolCall]()
        for part in parts:
            if isinstance(part, str):
                said += self._stops.push(part)
                continue
            # A stop string does not reach over a call: what was held back for one goes out.
            said += self._stops.finish()
            if self.stopped_by is not None:
                break
            calls.append(part)
        return said, calls
