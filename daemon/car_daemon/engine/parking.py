"""Requests that were set aside: where they were, and their cells in host memory as far as there is room."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from car_daemon.engine.batching.adapter_turns import AdapterSet
from car_daemon.engine.batching.prefix import Prefix
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.generation import Generation
from car_daemon.engine.prefix_cache import CellContext
from car_daemon.engine.saved_cells import SavedCells


@dataclass(slots=True)
class ParkedRequest:
    """A request between two leases; `saved` is None where its cells have to be computed again."""

    generation: Generation
    prompt: Rows[int]
    prefix: Prefix | None
    adapters: AdapterSet
    cells: int
    next_token: int | None
    saved: memoryview | None


class ParkingLot:
    """Keeps parked requests; their cells have a claim on the memory for saved ones."""

    def __init__(self, context: CellContext, room: SavedCells) -> None:
        self._context = context
        self._room = room
        # Mutable state: the parked requests by key.
        self._parked: dict[int, ParkedRequest] = {}

    def park(self, sequence: Sequence, generation: Generation) -> None:
        """Keep a request; the caller empties its sequence."""
        self._parked[generation.key] = ParkedRequest(
            generation=generation,
            prompt=sequence.prompt,
            prefix=sequence.prefix,
            adapters=sequence.adapters,
            cells=sequence.cells,
            next_token=sequence.next_token,
            saved=self._saved(sequence),
        )

    def take(self, key: int) -> ParkedRequest | None:
        """Return a parked request and forget it."""
        parked = self._parked.pop(key, None)
        if parked is not None and parked.saved is not None:
            self._room.unpin(len(parked.saved))
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
        sequence.prefix = parked.prefix

    def _saved(self, sequence: Sequence) -> memoryview | None:
        # Logits that wait to be sampled cannot be saved: that request is computed again.
        if sequence.held or not self._room.pin(size := self._context.saved_size(sequence.number)):
            return None
        saved = self._context.save(sequence.number)
        assert len(saved) == size
        return saved
