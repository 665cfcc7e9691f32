"""One running request inside the engine: its sampler, its text and when it ends."""

from collections.abc import Sequence as Rows
from typing import Protocol

from car_daemon.engine.frames import End, Run
from car_daemon.engine.text_stream import TextStream
from car_protocol.infer import FinishReason, Usage


class Vocabulary(Protocol):
    """What a generation needs to know about tokens."""

    @property
    def pieces(self) -> Rows[bytes]:
        """The bytes of every token."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a generation."""
        ...


class Generation:
    """Sampled tokens into text, up to a stop string, an end token, `max_tokens` or a deadline."""

    def __init__(self, run: Run, sampler: object, vocabulary: Vocabulary, prompt_tokens: int, now: float) -> None:
        self.key = run.key
        self.sampler = sampler
        self._max_tokens = run.max_tokens
        self._return_tokens = run.return_tokens
        self._vocabulary = vocabulary
        self.prompt_tokens = prompt_tokens
        self._started = now
        # Mutable state: the text on its way, the tokens so far, when the first one came and why it ended.
        self._text = TextStream(run.stop)
        self.history: list[int] = []
        self.tokens: list[int] | None = None
        self._first_token: float | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def produced(self) -> int:
        """Tokens sampled so far."""
        return len(self.history)

    def take(self, token: int, now: float) -> str:
        """Count one sampled token at `now` (seconds) and return the text that it releases."""
        if self._first_token is None:
            self._first_token = now
        self.history.append(token)
        self.tokens = [token] if self._return_tokens else None
        if token in self._vocabulary.ends:
            return self.finish("stop")
        text = self._text.push(self._vocabulary.pieces[token])
        if self._text.stopped_by is not None:
            self.finish_reason = "stop"
        elif self.produced >= self._max_tokens:
            text += self.finish("length")
        return text

    def finish(self, reason: FinishReason) -> str:
        """End here; return the text that was held back. A stop string in it still counts."""
        text = self._text.finish()
        self.finish_reason = "stop" if self._text.stopped_by is not None else reason
        return text

    def end(self, now: float, *, failed: bool = False) -> End:
        """Describe how it ended; without a finish reason it was cancelled or failed."""
        first = self._first_token if self._first_token is not None else now
        return End(
            reason=self.finish_reason,
            stop=self._text.stopped_by,
            usage=Usage(self.prompt_tokens, 0, self.produced),
            prefill_ms=(first - self._started) * 1000,
            decode_ms=(now - first) * 1000,
            failed=failed,
        )
