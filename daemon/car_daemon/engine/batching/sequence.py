"""One KV stream and the request that runs in it."""

from collections.abc import Sequence as Rows
from enum import Enum


class Phase(Enum):
    """What a sequence needs from the next step."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"


class Sequence:
    """One KV stream; `cells` counts the tokens that the KV cache holds for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Mutable state: the tokens to prefill, the committed cells, the sampled token that is not in them yet, and
        # the one that was sampled already when a parked request is computed again.
        self.prompt: Rows[int] = ()
        self.cells = 0
        self.next_token: int | None = None
        self.known_token: int | None = None
        self.order = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.number} {self.phase.value} cells={self.cells} prompt={len(self.prompt)}>"

    @property
    def phase(self) -> Phase:
        """What the next step has to do for this sequence."""
        if not len(self.prompt):
            return Phase.IDLE
        return Phase.PREFILL if self.next_token is None else Phase.DECODE

    @property
    def remaining(self) -> int:
        """Prompt tokens that are not in the cells yet."""
        return len(self.prompt) - self.cells

    def start(self, prompt: Rows[int], order: int) -> None:
        """Take a request's prompt (at least one token); `order` tells who came first."""
        if self.phase is not Phase.IDLE or not len(prompt):
            raise ValueError(f"cannot start in {self!r} with {len(prompt)} prompt tokens")
        self.prompt = prompt
        self.order = order

    def commit(self, tokens: int) -> None:
        """Count `tokens` more cells, after their decode returned 0."""
        self.cells += tokens

    def accept(self, token: int) -> None:
        """Take the sampled token that the next step decodes."""
        self.next_token = token

    def restore(self, cells: int, next_token: int | None) -> None:
        """Go on where a parked request was; its cells are back already."""
        self.cells = cells
        self.next_token = next_token

    def clear(self) -> None:
        """Forget the request; the caller has removed its cells."""
        self.prompt = ()
        self.cells = 0
        self.next_token = None
        self.known_token = None
