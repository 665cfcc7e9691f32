"""Tokens from output rows: unconstrained ones at once, grammar-bound ones by turns within a time budget."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from car_engine.batching.sequences import Sequence
from car_engine.grammar.constraint import ConstraintError
from car_protocol.answer import Logprob

# Grammars may take this long in a step before other streams would notice; one token is sampled in any case.
_BUDGET_S = 0.005


class Sampler(Protocol):
    """The sampler of one request."""

    logprobs: int | None

    @property
    def bound(self) -> bool:
        """Whether the next token has to fit a grammar."""
        ...

    def choose(self, logits: Any) -> int:
        """Return and accept the next token that the grammar allows. Raises ConstraintError."""
        ...


class OutputRows(Protocol):
    """The output rows of the last decode."""

    def sample(self, sampler: Any, row: int) -> int:
        """Return and accept the next token of an output row."""
        ...

    def logits(self, row: int) -> Any:
        """Return the logits of an output row, which the next decode overwrites."""
        ...


class SampledToken(Struct, frozen=True, gc=False):
    """The next token of a sequence, with its log probability if the request has that option."""

    sequence: Sequence
    token: int
    logprob: Logprob | None


class SamplingTurns:
    """Sample rows; a grammar-bound row whose turn does not come in this step keeps its logits for the next."""

    def __init__(
        self, rows: OutputRows, logprob_of: Callable[[Any, int, int], Logprob], clock: Callable[[], float]
    ) -> None:
        self._rows = rows
        self._logprob_of = logprob_of
        self._clock = clock
        self._samplers: dict[int, Sampler] = {}  # By sequence number.
        self.waiting: dict[int, tuple[Sequence, Any]] = {}  # Logits by sequence number, longest waiting first.

    def join(self, sequence: Sequence, sampler: Sampler) -> None:
        """Sample a sequence with this sampler from now on."""
        self._samplers[sequence.number] = sampler

    def leave(self, sequence: Sequence) -> None:
        """Drop the sampler and the waiting logits of a sequence whose request ended or was parked."""
        self._samplers.pop(sequence.number, None)
        self.waiting.pop(sequence.number, None)

    def sample(self, sequence: Sequence, row: int) -> SampledToken | None:
        """Return the token of an output row; None if it has to wait for its turn."""
        sampler = self._samplers[sequence.number]
        if sampler.bound:
            sequence.await_turn()
            self.waiting[sequence.number] = sequence, self._rows.logits(row).copy()
            return None
        token = self._rows.sample(sampler, row)
        if sampler.logprobs is not None:
            return self._sampled(sequence, token, self._rows.logits(row))
        sequence.accept(token)
        return SampledToken(sequence, token, None)

    def sample_waiting(self) -> tuple[list[SampledToken], list[Sequence]]:
        """Sample waiting rows while the budget lasts; return tokens, and sequences whose grammar failed."""
        tokens: list[SampledToken] = []
        failed: list[Sequence] = []
        started = self._clock() if self.waiting else 0.0
        while self.waiting:
            sequence, logits = self.waiting.pop(next(iter(self.waiting)))
            try:
                token = self._samplers[sequence.number].choose(logits)
            except ConstraintError:
                failed.append(sequence)
            else:
                tokens.append(self._sampled(sequence, token, logits))
            if self._clock() - started > _BUDGET_S:
                break
        return tokens, failed

    def _sampled(self, sequence: Sequence, token: int, logits: Any) -> SampledToken:
        sequence.accept(token)
        count = self._samplers[sequence.number].logprobs
        return SampledToken(sequence, token, None if count is None else self._logprob_of(logits, token, count))
