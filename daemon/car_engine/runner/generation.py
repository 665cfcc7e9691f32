"""One running request inside the engine: its sampler, its text, the ids of its tool calls, and its end."""

from collections import abc
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from car_base.host.event_log import named
from car_base.ipc.codec import unpacked_reading
from car_base.ipc.frames import End, Extra, Fault, Reading, Run
from car_engine.batching.reuse.read_prompts import SHOWN_TOKENS, Parting
from car_engine.output.families import FAMILIES
from car_engine.output.reader import NOTHING, OutputReader, ReasoningSplit, Released
from car_engine.output.tool_calls import ToolCallReader
from car_engine.runner.stepper import TokenSampler
from car_protocol.answer import MOST_WORDS, FinishReason, Logprob, Parted, Usage


class ThoughtBudget:
    """Counts the tokens of thoughts; a thought that has them all goes on with `closing`, the tokens of its end."""

    def __init__(self, most: int, closing: list[int], sampler: TokenSampler, reader: OutputReader) -> None:
        self._left = most
        self._closing = closing
        self._sampler = sampler
        self._reader = reader
        self._thinking = False
        self.look()

    def look(self) -> None:
        """Count the token that the reader read last, and decide the next tokens."""
        self._left -= self._thinking
        self._thinking = self._reader.thinking
        if self._thinking and self._left <= 0 and not self._sampler.due:
            self._sampler.due = list(self._closing)
        # Tokens of right guesses are read after their step, so a step has no more of them than may be thought.
        self._sampler.ahead = max(1, self._left) if self._reader.may_think else None


def closing_text(reading: Reading, *, bound: bool) -> str | None:
    """Return the text that ends a thought, as `reasoning: off` ends it; None if answers have no thoughts.

    A grammar, if the answer is `bound` by one, begins right behind the thought.
    """
    if reading.thinking is not None:
        return f"\n\n{reading.thinking.close}" + ("" if bound else "\n\n")
    header = FAMILIES[reading.tools].header if reading.tools is not None else None
    return header.ends[0] if header is not None and header.thought is not None else None


_BYTES = 12
# Tokens before the place where prompts part, in which the word there begins.
_LEAD = 8
# What stands for the tokens of an image or a sound, which have no words.
_MEDIA = b"[image or sound]"
_SEED_BITS = 32


def call_ids(run: Run) -> Callable[[], str]:
    """Return a source of ids: random ids, for a reproducible request derived from its prompt and seed."""
    if not run.options.reproducible:
        return lambda: f"call_{token_hex(_BYTES)}"
    numbers = count(run.options.seed << _SEED_BITS)

    def derived() -> str:
        number = next(numbers).to_bytes(_BYTES, "little")
        return f"call_{blake2b(run.prepared.tokens, digest_size=_BYTES, person=number).hexdigest()}"

    return derived


class AnswerTokens(NamedTuple):
    """The tokens of a model as its answers use them.

    `ends` end an answer; `showing` returns the bytes of every token, control tokens written out if their text is a
    marker; `of` returns the tokens of a text, control tokens among them.
    """

    ends: frozenset[int]
    showing: Callable[[tuple[str, ...]], abc.Sequence[bytes]]
    of: Callable[[str], list[int]]


class Work:
    """Work for a request that no update has reported yet: cells from the cache, and prompt tokens computed."""

    __slots__ = ("cached", "computed")

    def __init__(self) -> None:
        self.cached = 0
        self.computed = 0

    def paid(self) -> tuple[int, int]:
        """Return both for an update, and begin anew."""
        cached, computed = self.cached, self.computed
        self.cached = self.computed = 0
        return cached, computed


class Generation:
    """Turn sampled tokens into text, up to a stop string, an end token, a grammar's end, `max_tokens` or a deadline."""

    def __init__(
        self, run: Run, sampler: TokenSampler, tokens: AnswerTokens, prompt_tokens: int, now: float, room: int
    ) -> None:
        reading, options = unpacked_reading(run.prepared.reading), run.options
        self.key = run.key
        self.sampler = sampler
        # An engine with a longer context may have prepared it.
        self._max_tokens = min(run.prepared.max_tokens, room)
        self._return_tokens = options.return_tokens
        self._ends = tokens.ends
        self._pieces = tokens.showing(reading.markers)
        self.prompt_tokens = prompt_tokens
        self.own = run.prepared.own
        self.parts = run.prepared.parts
        self._parted: Parted | None = None
        self.images = run.prepared.images
        self.owner, self.names = run.prepared.owner, run.prepared.names
        self.reproducible = options.reproducible
        self._started = now
        self._reader = reader_of(reading, options.stop, call_ids(run))
        self._plain = self._reader.plain and not sampler.bound  # only its length and an end token end it
        self.history: list[int] = []  # Sampled tokens.
        self.cached_tokens = 0  # Cells that did not have to be computed.
        self.owed = Work()
        self._first_token: float | None = None  # Its time.
        self.finish_reason: FinishReason | None = None
        self.defect: str | None = None  # why its text could not be read: an error's type and place
        sampler.unconstrained = self._reader.thinking
        self._budget: ThoughtBudget | None = None
        closing = closing_text(reading, bound=sampler.bound)
        if options.reasoning_tokens is not None and closing is not None:
            self._budget = ThoughtBudget(options.reasoning_tokens, tokens.of(closing), sampler, self._reader)

    def push(self, token: int, now: float) -> Released:
        """Add a token that was sampled at `now` (seconds); return the output that it completes.

        If its reader fails, it has a `defect` from then on: the model chose the text, so no other request ends by it.
        """
        if self._first_token is None:
            self._first_token = now
        self.history.append(token)
        if token in self._ends:
            return self.finish("stop")
        try:
            output = self._reader.push(self._pieces[token])
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - reported with its place, as a fault of the request
            self.defect = named(error)
            return NOTHING
        if not self._plain:
            self.sampler.unconstrained = self._reader.thinking
            if self._budget is not None:
                self._budget.look()
            if self._reader.ended:
                self.finish_reason = "stop"
                return output
            if self.sampler.complete:
                return output.joined(self.finish("stop"))
        if len(self.history) >= self._max_tokens:
            output = output.joined(self.finish("length"))
        return output

    def explain(self, parting: Parting, prompt: list[int]) -> None:
        """Keep the reason why tokens are computed again, with the words of both prompts where they part."""
        start = max(0, parting.at - _LEAD)
        lead, now = (self._words(each) for each in (prompt[start : parting.at], prompt[parting.at :][:SHOWN_TOKENS]))
        # The word in which they part begins in what they have in common.
        word = "" if not lead or lead[-1].isspace() else lead.split()[-1]
        self._parted = Parted(
            reason=parting.reason,
            at=parting.at,
            tokens=parting.tokens,
            message=parting.message,
            was=(word + self._words(parting.known))[:MOST_WORDS] if parting.known is not None else None,
            now=(word + now)[:MOST_WORDS] if parting.known is not None else None,
        )

    def _words(self, tokens: abc.Sequence[int]) -> str:
        pieces: list[bytes] = []
        for token in tokens:
            piece = self._pieces[token] if 0 <= token < len(self._pieces) else _MEDIA
            if piece is not _MEDIA or pieces[-1:] != [_MEDIA]:
                pieces.append(piece)
        return b"".join(pieces).decode(errors="replace")

    def finish(self, reason: FinishReason) -> Released:
        """End the generation; return the text that waited for a possible stop string, which still counts."""
        try:
            output = self._reader.finish(cut=reason != "stop")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `push`
            self.defect = named(error)
            return NOTHING
        self.finish_reason = "stop" if self._reader.stopped_by is not None else reason
        return output

    def extras(self, output: Released, token: int | None = None, logprob: Logprob | None = None) -> Extra | None:
        """Return the results beside text, None if there are none."""
        tokens = (token,) if self._return_tokens and token is not None else ()
        if not (tokens or logprob or output.reasoning or output.calls):
            return None
        return Extra([*tokens], [logprob] if logprob else [], output.reasoning, output.calls)

    def done(self, cells: int) -> int:
        """Return how many tokens of the prompt are done, with this many cells."""
        return min(cells, self.prompt_tokens)

    def close(self) -> None:
        """Free its sampler."""
        self.sampler.close()

    def end(self, now: float, *, fault: Fault | None = None) -> End:
        """Return the frame of its end; without a finish reason the request was cancelled or failed."""
        first = self._first_token if self._first_token is not None else now
        return End(
            reason=self.finish_reason,
            stop=self._reader.stopped_by,
            usage=Usage(self.prompt_tokens, self.cached_tokens, len(self.history), self._parted),
            prefill_ms=(first - self._started) * 1000,
            decode_ms=(now - first) * 1000,
            fault=fault if self.defect is None else "reader",
            defect=self.defect,
        )


def reader_of(reading: Reading, stops: list[str], call_id: Callable[[], str]) -> OutputReader:
    """Return the reader of an answer of this syntax, whose calls have ids by `call_id`."""
    thinking = None
    if reading.thinking:
        answer = FAMILIES[reading.tools].begins_answer if reading.tools is not None else ()
        thinking = ReasoningSplit(reading.thinking, inside=reading.inside, answer=answer)
    calls = None
    if reading.tools is not None:
        calls = ToolCallReader(
            reading.tools,
            call_id,
            reading.functions,
            calls=reading.functions is not None,
            begun=reading.begun,
            keep=reading.keep,
            schemas=reading.schemas,
        )
    return OutputReader(stops, thinking, calls, keep=reading.keep, one_call=reading.one_call)
