"""Requests that were set aside: where they were, and their cells in host memory as far as there is room."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.generation import Generation


class SavingContext(Protocol):
    """A context whose sequences can be copied out and back in."""

    def saved_size(self, number: int) -> int:
        """Return the bytes that saving a sequence takes."""
        ...

    def save(self, number: int) -> bytes:
        """Return a sequence's cells."""
        ...

    def restore(self, number: int, saved: bytes) -> bool:
        """Put cells into an empty sequence, which may be another one; False where llama.cpp refuses."""
        ...


@dataclass(slots=True)
class ParkedRequest:
    """A request between two leases; `saved` is None where its cells have to be computed again."""

    generation: Generation
    prompt: Rows[int]
    cells: int
    next_token: int | None
    saved: bytes | None


class ParkingLot:
    """Keeps parked requests; their cells together take at most `limit` bytes."""

    def __init__(self, context: SavingContext, limit: int) -> None:
        self._context = context
        self._limit = limit
        # Mutable state: the parked requests by key, and the bytes of their cells.
        self._parked: dict[int, ParkedRequest] = {}
        self.saved_bytes = 0

    def park(self, sequence: Sequence, generation: Generation) -> None:
        """Keep a request; the caller empties its sequence."""
        saved = None
        if self.saved_bytes + self._context.saved_size(sequence.number) <= self._limit:
            saved = self._context.save(sequence.number)
            self.saved_bytes += len(saved)
        self._parked[generation.key] = ParkedRequest(
            generation, sequence.prompt, sequence.cells, sequence.next_token, saved
        )

    def take(self, key: int) -> ParkedRequest | None:
        """Return a parked request and forget it."""
        parked = self._parked.pop(key, None)
        if parked is not None and parked.saved is not None:
            self.saved_bytes -= len(parked.saved)
        return parked

    def restore(self, parked: ParkedRequest, sequence: Sequence) -> None:
        """Put a request back into a sequence that was started with its prompt."""
        history = parked.generation.history
        if parked.saved is not None and self._context.restore(sequence.number, parked.saved):
            sequence.restore(parked.cells, parked.next_token)
        elif history:
            # Its cells are computed again, as a prompt: all that was sampled, but for the token that comes next.
            sequence.prompt = [*parked.prompt[: parked.generation.prompt_tokens], *history[:-1]]
        if history and sequence.next_token is None:
            sequence.known_token = history[-1]
