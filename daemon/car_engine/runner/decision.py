"""One running decision inside the engine: prompts with a common prefix, read one after the other."""

from car_base.ipc.codec import packed_vector, tokens_of
from car_base.ipc.frames import End, Extra, Fault, Run
from car_engine.output.reader import NOTHING, Released
from car_engine.runner.generation import Generation, Work
from car_protocol.answer import FinishReason, Logprob, Usage


class RunningDecision:
    """The prompt that is read now, and what was computed; `prompt` has the prefix and the first tail."""

    def __init__(self, run: Run, now: float) -> None:
        form = run.prepared.decision
        assert form is not None
        tokens = tokens_of(run.prepared.tokens)
        self.key = run.key
        self.images = run.prepared.images
        self.owner, self.names = run.prepared.owner, run.prepared.names
        self.reproducible = run.options.reproducible
        self.parts = None  # what it shares with other requests is its caller's text alone
        self.prefix_tokens = form.prefix
        self._tails = form.tails
        self._starts = [form.prefix]  # of the tails in `tokens`, and the end
        for tail in form.tails:
            self._starts.append(self._starts[-1] + tail.length)
        self._tokens = tokens
        self._read = 0  # tails that were read
        self._started = now
        self.history: list[int] = []  # nothing is sampled
        self.cached_tokens = 0  # cells that did not have to be computed
        self.computed = 0  # tokens; tokens of lost cells count again
        self.owed = Work()
        self.prompt = tokens[: self._starts[1]]

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt."""
        return self.prefix_tokens + max(tail.length for tail in self._tails)

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt that is read now."""
        return self.prefix_tokens + self._tails[min(self._read, len(self._tails) - 1)].length

    @property
    def labels(self) -> int:
        """The number of labels to read at the end of the prompt."""
        return self._tails[self._read].labels

    @property
    def own(self) -> tuple[int, ...]:
        """The number of the prompt's tokens after the prefix, which other decisions do not have."""
        return (self.prompt_tokens - self.prefix_tokens,)

    @property
    def next_tail(self) -> list[int] | None:
        """The tokens after the prefix of the prompt that is read now; None once all were read."""
        if self._read == len(self._tails):
            return None
        return self._tokens[self._starts[self._read] : self._starts[self._read + 1]]

    def read(self) -> None:
        """Go on to the next prompt."""
        self._read += 1

    def done(self, cells: int) -> int:
        """Return how many tokens of prefix and tails are done, with this many in the sequence."""
        return self._starts[self._read] - self.prefix_tokens + min(cells, self.prompt_tokens)

    def finish(self, reason: FinishReason) -> Released:
        """Return no text: an early end leaves nothing to answer."""
        return NOTHING

    def extras(self, output: Released, token: int | None = None, logprob: Logprob | None = None) -> Extra | None:
        """Return no results beside the readings."""
        return None

    def close(self) -> None:
        """Free nothing: no sampler belongs to it."""

    def end(self, now: float, *, fault: Fault | None = None) -> End:
        """Return the frame of its end; without a finish reason it was cancelled or failed."""
        whole = sum(self.prefix_tokens + tail.length for tail in self._tails)
        return End(
            reason="stop" if self.next_tail is None and fault is None else None,
            stop=None,
            usage=Usage(whole, max(0, whole - self.computed), 0),
            prefill_ms=(now - self._started) * 1000,
            decode_ms=0.0,
            fault=fault,
        )


# What runs in a sequence.
Running = Generation | RunningDecision


def reading_of(figures: list[float]) -> Extra:
    """Return the figures of one prompt as the result of a step."""
    return Extra(vectors=[packed_vector(figures)])
