"""The context of a model as steps and moves of cells see it: the border to llama.cpp."""

from typing import Any, Protocol

from car_engine.batching.reuse.index import Memory


class Context(Protocol):
    """A model's context: llama.cpp's in production, a ledger in tests. Its sequences can be cut, copied out and in."""

    context_tokens: int

    @property
    def copying(self) -> bool:
        """Whether the next decode also copies cells, so that its time says nothing about its rows."""
        ...

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        """Decode one batch of rows; return 0 on success, otherwise llama.cpp's code."""
        ...

    def decode_rows(self, rows: Any, start: int, number: int, *, output: bool) -> int:
        """Decode rows of an image for one sequence from position `start` on."""
        ...

    def last_position(self, number: int) -> int:
        """Return the last position in a sequence, -1 if it is empty."""
        ...

    def sample(self, sampler: Any, row: int) -> int:
        """Return and accept the next token of an output row of the last decode."""
        ...

    def logits(self, row: int) -> Any:
        """Return the logits of an output row, which the next decode overwrites."""
        ...

    @property
    def memory(self) -> Memory:
        """The memory of its sequences."""
        ...

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on; of a memory with states all, or none."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Copy the cells of a sequence to an empty one; the next decode copies the whole capacity of a sequence."""
        ...

    def saved_size(self, number: int) -> int:
        """Return the bytes that saving a sequence takes."""
        ...

    def save(self, number: int) -> memoryview:
        """Return a sequence's cells and its state."""
        ...

    def restore(self, number: int, saved: memoryview) -> bool:
        """Put cells and their state into any empty sequence; False if llama.cpp refuses."""
        ...

    def state_size(self, number: int) -> int:
        """Return the bytes that saving the state of a sequence takes."""
        ...

    def save_state(self, number: int) -> memoryview:
        """Return a sequence's state."""
        ...

    def restore_state(self, number: int, state: memoryview, tokens: int) -> bool:
        """Put the state after so many tokens over a sequence that begins with these; False if llama.cpp refuses."""
        ...
