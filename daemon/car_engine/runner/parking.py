"""Parked requests, and their cells in host memory as far as there is room."""

from collections import abc
from dataclasses import dataclass

from car_base.ipc.types import AdapterSet
from car_engine.batching.context import Context
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.read_prompts import KnownPrompt
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Sequence
from car_engine.runner.decision import Running


@dataclass(slots=True)
class ParkedRequest:
    """A request between two leases; `saved` is None if its cells have to be computed again."""

    running: Running
    prompt: abc.Sequence[int]
    prefix: Prefix | None
    adapters: AdapterSet
    cells: int
    next_token: int | None
    saved: memoryview | None
    stops: list[int]
    read: KnownPrompt | None


class ParkingLot:
    """Parked requests by key; their cells have precedence in the memory for saved cells.

    Cells go through the host, from a GPU over its bus: if that costs more than to compute them, they are not saved.
    """

    def __init__(self, context: Context, saved_cells: SavedCells, costs: MoveCosts) -> None:
        self._context = context
        self._saved_cells = saved_cells
        self._costs = costs
        self._parked: dict[int, ParkedRequest] = {}
        self.counters = {"restored_tokens": 0.0, "recomputed_tokens": 0.0}  # Since the start.

    def __repr__(self) -> str:
        saved = sum(parked.saved is not None for parked in self._parked.values())
        return f"<ParkingLot parked={len(self._parked)} saved={saved}>"

    def park(self, sequence: Sequence, running: Running) -> None:
        """Keep a request; the caller empties its sequence."""
        saved = None
        number = sequence.number
        size = self._context.saved_size(number)
        # A reproducible request needs its cells where they were computed, and of windows they come back elsewhere.
        whole = sequence.grid is None or not self._context.memory.windows
        # Logits that wait for their turn cannot be saved, so such a request is computed again.
        if whole and not sequence.awaiting_turn and self._saves(sequence) and self._saved_cells.pin(size):
            saved = self._costs.saving(sequence.cells, lambda: self._context.save(number))
            assert len(saved) == size
        self._parked[running.key] = ParkedRequest(
            running=running,
            prompt=sequence.prompt,
            prefix=sequence.prefix,
            adapters=sequence.adapters,
            cells=sequence.cells,
            next_token=sequence.next_token,
            saved=saved,
            stops=sequence.stops,
            read=sequence.read,
        )

    def pop(self, key: int) -> ParkedRequest | None:
        """Remove and return a parked request."""
        parked = self._parked.pop(key, None)
        if parked is not None and parked.saved is not None:
            self._saved_cells.unpin(len(parked.saved))
        return parked

    def restore(self, parked: ParkedRequest, sequence: Sequence) -> None:
        """Put a request back into a sequence that was started with its prompt."""
        running, history = parked.running, parked.running.history
        restored = parked.saved is not None and self._restored(sequence.number, parked.cells, parked.saved)
        there = parked.cells if restored else min(parked.cells, max(sequence.cells, sequence.awaited))
        self.counters["restored_tokens"] += there
        self.counters["recomputed_tokens"] += parked.cells - there
        if restored:
            sequence.cells, sequence.next_token = parked.cells, parked.next_token
        elif history:
            # Its cells are computed again as a prompt: all sampled tokens but the one that comes next.
            sequence.prompt = [*parked.prompt[: running.prompt_tokens], *history[:-1]]
        if history and sequence.next_token is None:
            sequence.known_token = history[-1]

    def _saves(self, sequence: Sequence) -> bool:
        """Return whether cells are saved: always rows of images and cells of reproducible requests."""
        costs, cells = self._costs, sequence.cells
        if not cells:
            return False
        moved_s = costs.save(cells) + costs.restore(cells)
        if sequence.grid is not None or sequence.images.count or moved_s < costs.compute(0, cells):
            return True
        costs.declined()
        return False

    def _restored(self, number: int, cells: int, saved: memoryview) -> bool:
        """Put saved cells back; False if llama.cpp refuses."""
        return self._costs.restoring(cells, lambda: self._context.restore(number, saved))
