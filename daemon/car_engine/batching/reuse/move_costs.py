"""Seconds to compute cells, and to move them in place of that: learned from the moves that were made."""

from collections.abc import Callable
from typing import TypeVar

from car_engine.batching.costs import StepCosts

# Seconds a byte until a move was made, on two cores.
SAVE_BYTE_S = 0.43e-9
_RESTORE_BYTE_S = 0.3 * SAVE_BYTE_S
_READ_BYTE_S = 2e-9  # from a file that may not be in memory
# llama.cpp copies the whole capacity of a sequence, and each of its cells for this part of saving and restoring it.
_COPY = 0.25
_WEIGHT = 0.2  # of a new observation
_MOST_GROWTH = 2.0  # an observation counts as at most this multiple of the known cost
# A move that was too expensive counts for this much less with each time, so that one stall does not forbid it for good.
_RETRY = 0.98

Moved = TypeVar("Moved")


class MoveCosts:
    """The costs of one context, whose sequences have `context_tokens` cells and a state; sizes in bytes.

    `state_tokens` tokens take as much memory in all layers as a state.
    """

    def __init__(
        self,
        steps: StepCosts,
        context_tokens: int,
        cell_bytes: float,
        clock: Callable[[], float],
        state_bytes: float = 0.0,
        state_tokens: float = 0.0,
    ) -> None:
        self.steps = steps
        self._context_tokens = context_tokens
        self._clock = clock
        self._cell_bytes, self._state_bytes = cell_bytes, state_bytes
        self.state_tokens = state_tokens
        self._save, self._restore, self._read = SAVE_BYTE_S, _RESTORE_BYTE_S, _READ_BYTE_S  # seconds a byte
        self.checkpoint = SAVE_BYTE_S * state_bytes  # seconds to save a state alone

    def __repr__(self) -> str:
        return f"<MoveCosts save={self._save * 1e9:.2f} restore={self._restore * 1e9:.2f} ns/byte>"

    def compute(self, start: int, end: int) -> float:
        """Return the seconds to compute a prompt's tokens from one place to another."""
        return self.steps.prompt(start, end)

    def save(self, cells: int) -> float:
        """Return the seconds to save cells."""
        return self._save * self._bytes(cells)

    def restore(self, cells: int) -> float:
        """Return the seconds to restore cells."""
        return self._restore * self._bytes(cells)

    def read(self, cells: int) -> float:
        """Return the seconds to read cells from their file."""
        return self._read * self._bytes(cells)

    def copy(self) -> float:
        """Return the seconds to copy a sequence within the context, which no step shows apart."""
        return _COPY * (self.save(self._context_tokens) + self.restore(self._context_tokens))

    def saving(self, cells: int, move: Callable[[], Moved]) -> Moved:
        """Save cells, and learn from the time."""
        started = self._clock()
        moved = move()
        self._save = _learned(self._save, (self._clock() - started) / self._bytes(cells))
        return moved

    def restoring(self, cells: int, move: Callable[[], Moved]) -> Moved:
        """Restore cells, and learn from the time."""
        started = self._clock()
        moved = move()
        self._restore = _learned(self._restore, (self._clock() - started) / self._bytes(cells))
        return moved

    def marking(self, move: Callable[[], Moved]) -> Moved:
        """Save a state alone, and learn from the time."""
        started = self._clock()
        moved = move()
        self.checkpoint = _learned(self.checkpoint, self._clock() - started)
        return moved

    def was_read(self, cells: int, seconds: float) -> None:
        """Learn from the time that it took to read cells from their file."""
        self._read = _learned(self._read, seconds / self._bytes(cells))

    def declined(self) -> None:
        """Count cells that were not saved because that was too expensive."""
        self._save *= _RETRY
        self._restore *= _RETRY

    def _bytes(self, cells: int) -> float:
        return self._cell_bytes * cells + self._state_bytes


def _learned(known: float, seen: float) -> float:
    return known + _WEIGHT * (min(seen, _MOST_GROWTH * known) - known)
