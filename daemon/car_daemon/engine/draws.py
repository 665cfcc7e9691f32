"""Tokens from output rows: free ones at once, those that a grammar binds in turn, within a budget of time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.grammar.constraint import ConstraintError
from car_protocol.answer import Logprob

# Grammars may take this long in a step before other streams would notice; one token is sampled in any case.
_BUDGET_S = 0.005


class Sampler(Protocol):
    """What a request's sampler tells and does."""

    logprobs: int | None

    @property
    def bound(self) -> bool:
        """Whether the next token has to fit a grammar."""
        ...

    def choose(self, logits: Any) -> int:
        """Return and accept the next token that a grammar allows. Raises ConstraintError."""
        ...


class Rows(Protocol):
    """The output rows of the last decode."""

    def sample(self, sampler: Any, row: int) -> int:
        """Return and accept the next token of an output row."""
        ...

    def logits(self, row: int) -> Any:
        """Return the logits of an output row, which the next decode overwrites."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One sequence's token, and how likely it was where that was asked for."""

    sequence: Sequence
    token: int
    logprob: Logprob | None


class Draws:
    """Samples rows; a row whose turn does not come in this step keeps its logits for the next."""

    def __init__(
        self,
        rows: Rows,
        sampler_of: Callable[[Sequence], Sampler],
        likelihood: Callable[[Any, int, int], Logprob],
        clock: Callable[[], float],
    ) -> None:
        self._rows = rows
        self._sampler_of = sampler_of
        self._likelihood = likelihood
        self._clock = clock
        # Mutable state: the logits of the sequences that wait, by number, longest waiting first.
        self._waiting: dict[int, tuple[Sequence, Any]] = {}

    def take(self, sequence: Sequence, row: int) -> Draw | None:
        """Return the token of an output row; None where it has to wait for its turn."""
        sampler = self._sampler_of(sequence)
        if sampler.bound:
            sequence.hold()
            self._waiting[sequence.number] = sequence, self._rows.logits(row).copy()
            return None
        token = self._rows.sample(sampler, row)
        logits = self._rows.logits(row) if sampler.logprobs is not None else None
        return self._drawn(sequence, sampler, token, logits)

    def settle(self) -> tuple[list[Draw], list[Sequence]]:
        """Sample those that wait as long as the budget lasts; return draws, and whom a grammar failed."""
        draws: list[Draw] = []
        failed: list[Sequence] = []
        started = self._clock() if self._waiting else 0.0
        while self._waiting:
            sequence, logits = self._waiting.pop(next(iter(self._waiting)))
            sampler = self._sampler_of(sequence)
            try:
                draws.append(self._drawn(sequence, sampler, sampler.choose(logits), logits))
            except ConstraintError:
                failed.append(sequence)
            if self._clock() - started > _BUDGET_S:
                break
        return draws, failed

    def forget(self, sequence: Sequence) -> None:
        """Drop what waits for a sequence that ended or was parked."""
        self._waiting.pop(sequence.number, None)

    def _drawn(self, sequence: Sequence, sampler: Sampler, token: int, logits: Any) -> Draw:
        sequence.accept(token)
        count = sampler.logprobs
        return Draw(sequence, token, None if count is None else self._likelihood(logits, token, count))
