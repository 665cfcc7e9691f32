"""Sampled tokens into reasoning, text up to a stop string, and tool calls."""

import codecs

from msgspec import Struct
from msgspec.structs import replace

from car_base.ipc.frames import CallDelta
from car_engine.output.reasoning import ReasoningSplit
from car_engine.output.stop_search import StopSearch
from car_engine.output.tool_calls import Part, Thought, ToolCallReader


class Output(Struct, frozen=True, gc=False):
    """The text that one token released; `calls` has pieces of calls, and text after the first of them."""

    text: str
    reasoning: str
    calls: list[CallDelta | str]

    def joined(self, after: "Output") -> "Output":
        """Return this output and the one after it as one."""
        reasoning = self.reasoning + after.reasoning
        if not self.calls:
            return Output(self.text + after.text, reasoning, after.calls)
        between = [after.text] if after.text else []
        return Output(self.text, reasoning, [*self.calls, *between, *after.calls])


NOTHING = Output("", "", [])


class OutputReader:
    """Bytes of tokens into output that may be sent; stop strings match within text alone, never across a call.

    With `one_call` the output ends with its first call.
    """

    def __init__(
        self,
        stops: list[str],
        thinking: ReasoningSplit | None,
        calls: ToolCallReader | None,
        *,
        keep: bool = False,
        one_call: bool = False,
    ) -> None:
        self.plain = not stops and thinking is None and calls is None  # no token ends the answer, or begins a thought
        self._incomplete = b""  # bytes of a character
        self._thinking = thinking
        self._calls = calls
        self._keep = keep and thinking is not None
        self._undecided = ""  # text that may become a part of a kept thought
        self._stops = StopSearch(stops)
        self._one_call = one_call
        self._called = False  # the only call ended

    @property
    def ended(self) -> bool:
        """True once nothing more is read: after a stop string, or the only call."""
        return self._called or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found, None without one."""
        return self._stops.stopped_by

    def push(self, piece: bytes) -> Output:
        """Read one token's bytes."""
        # An incremental decoder would make one more call of Python for each token.
        piece = self._incomplete + piece
        text, used = codecs.utf_8_decode(piece, "replace")
        self._incomplete = piece[used:]
        if self.plain:
            return Output(text, "", [])
        return self._read(text, ended=False)

    def finish(self, *, cut: bool = False) -> Output:
        """Return the undecided rest; if the answer was `cut`, without the beginning of a call or of a character."""
        text, _ = codecs.utf_8_decode(self._incomplete, "replace", not cut)
        return self._read(text, ended=True, cut=cut)

    @property
    def thinking(self) -> bool:
        """True inside reasoning."""
        split, calls = self._thinking, self._calls
        return (split is not None and split.thinking) or (calls is not None and calls.thinking)

    def _read(self, text: str, *, ended: bool, cut: bool = False) -> Output:
        if self.ended:
            return NOTHING
        reasoning, answer = self._thinking.push(text) if self._thinking is not None else ("", text)
        if ended and self._thinking is not None:
            rest = self._thinking.finish(cut=cut)
            reasoning, answer = reasoning + rest.reasoning, answer + rest.text
        # Calls inside a thought do not count.
        parts: list[Part] = self._calls.push(answer) if self._calls is not None else [answer]
        if ended and self._calls is not None:
            parts += self._calls.finish(cut=cut)
        if len(parts) == 1 and isinstance(parts[0], str) and not (ended or self._keep):
            # Most tokens.
            return Output(self._stops.push(parts[0]), reasoning, [])
        kept = ""
        if self._keep:
            self._undecided += text
            # A thought is kept with its tags, once it is known not to be part of the answer.
            if answer or ended or (self._thinking is not None and self._thinking.thinking):
                kept, self._undecided = self._undecided[: len(self._undecided) - len(answer)], ""
        released = self._until_stop([kept, *parts])
        if ended and not self._called:
            released.append(self._stops.finish())
        output = _output(released)
        return replace(output, reasoning="" if self._keep else reasoning + output.reasoning)

    def _until_stop(self, parts: list[Part]) -> list[Part]:
        """Return the parts in front of a stop string, or up to the end of the only call."""
        released: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                released.append(self._stops.push(part))
                continue
            # A stop string does not match across a call: text that could have begun one is released.
            released.append(self._stops.finish())
            if self.stopped_by is not None:
                break
            released.append(part)
            if self._one_call and isinstance(part, CallDelta) and part.ended:
                self._called = True
                break
        return released


def _output(parts: list[Part]) -> Output:
    """Return parts as one output."""
    texts, thoughts, calls = list[str](), list[str](), list[CallDelta | str]()
    for part in parts:
        if isinstance(part, Thought):
            thoughts.append(part.text)
        elif isinstance(part, str) and not calls:
            texts.append(part)
        elif part:
            calls.append(part)
    return Output("".join(texts), "".join(thoughts), calls)
