"""One running request inside the engine: its sampler, its text and when it ends."""

import secrets
from collections.abc import Sequence as Rows
from typing import Protocol

from car_daemon.engine.draws import Sampler
from car_daemon.engine.frames import End, Extra, Fault, Run
from car_daemon.engine.output.reader import Output, OutputReader
from car_daemon.engine.output.reasoning import ReasoningSplit
from car_daemon.engine.output.tool_calls import ToolCallReader
from car_protocol.answer import FinishReason, Logprob, Usage

NOTHING = Output("", "", [])
_CALL_ID_BYTES = 12


class BoundSampler(Sampler, Protocol):
    """A sampler as its request sees it."""

    dormant: bool

    @property
    def complete(self) -> bool:
        """Whether the grammar lets nothing follow any more."""
        ...

    def close(self) -> None:
        """Free it; called once."""
        ...


class Vocabulary(Protocol):
    """What a generation needs to know about tokens."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a generation."""
        ...

    def showing(self, markers: tuple[str, ...]) -> Rows[bytes]:
        """Return the bytes of every token, with control tokens written out whose text is a marker."""
        ...


class Generation:
    """Sampled tokens into text, up to a stop string, an end token, a grammar's end, `max_tokens` or a deadline."""

    def __init__(self, run: Run, sampler: BoundSampler, vocabulary: Vocabulary, prompt_tokens: int, now: float) -> None:
        self.key = run.key
        self.sampler = sampler
        self._max_tokens = run.max_tokens
        self._return_tokens = run.return_tokens
        self._ends = vocabulary.ends
        self._pieces = vocabulary.showing(run.reading.markers)
        self.prompt_tokens = prompt_tokens
        self.images = run.images
        self._started = now
        # Mutable state: the text on its way, the tokens so far, how many of the prompt were cached, when the
        # first token came and why it ended.
        self._thinking = _thinking(run)
        self._reader = OutputReader(run.stop, self._thinking, _calls(run), keep=run.reading.keep)
        self.history: list[int] = []
        self.cached_tokens = 0
        self._first_token: float | None = None
        self.finish_reason: FinishReason | None = None
        sampler.dormant = self._thinking is not None and self._thinking.thinking

    @property
    def produced(self) -> int:
        """Tokens sampled so far."""
        return len(self.history)

    def take(self, token: int, now: float) -> Output:
        """Count one sampled token at `now` (seconds) and return what it releases."""
        if self._first_token is None:
            self._first_token = now
        self.history.append(token)
        if token in self._ends:
            return self.finish("stop")
        output = self._reader.push(self._pieces[token])
        if self._thinking is not None:
            self.sampler.dormant = self._thinking.thinking
        if self._reader.stopped_by is not None:
            self.finish_reason = "stop"
        elif self.sampler.complete:
            output = _joined(output, self.finish("stop"))
        elif self.produced >= self._max_tokens:
            output = _joined(output, self.finish("length"))
        return output

    def finish(self, reason: FinishReason) -> Output:
        """End here; return the text that was held back. A stop string in it still counts."""
        output = self._reader.finish()
        self.finish_reason = "stop" if self._reader.stopped_by is not None else reason
        return output

    def beside(self, output: Output, token: int | None = None, logprob: Logprob | None = None) -> Extra | None:
        """Return what goes beside the text, if anything does."""
        tokens = [token] if self._return_tokens and token is not None else []
        if not (tokens or logprob or output.reasoning or output.calls):
            return None
        return Extra(tokens, [logprob] if logprob else [], output.reasoning, output.calls)

    def end(self, now: float, *, fault: Fault | None = None) -> End:
        """Describe how it ended; without a finish reason it was cancelled or failed."""
        first = self._first_token if self._first_token is not None else now
        return End(
            reason=self.finish_reason,
            stop=self._reader.stopped_by,
            usage=Usage(self.prompt_tokens, self.cached_tokens, self.produced),
            prefill_ms=(first - self._started) * 1000,
            decode_ms=(now - first) * 1000,
            fault=fault,
        )


def _thinking(run: Run) -> ReasoningSplit | None:
    reading = run.reading
    return ReasoningSplit(reading.thinking, inside=reading.inside) if reading.thinking is not None else None


def _calls(run: Run) -> ToolCallReader | None:
    return ToolCallReader(run.reading.tools, _call_id) if run.reading.tools is not None else None


def _call_id() -> str:
    return "call_" + secrets.token_hex(_CALL_ID_BYTES)


def _joined(first: Output, last: Output) -> Output:
    return Output(first.text + last.text, first.reasoning + last.reasoning, first.calls + last.calls)
