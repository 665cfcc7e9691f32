"""One KV stream and the request that runs in it."""

from collections import abc
from enum import Enum

from car_daemon.engine.batching.grid import Grid
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.prefix import Prefix
from car_daemon.engine.batching.prompt_images import PromptImages
from car_daemon.ipc.types import NO_ADAPTERS


class Phase(Enum):
    """The work that a sequence needs next."""

    IDLE = "idle"
    FOLLOW = "follow"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    SAMPLE = "sample"


class Sequence:
    """One KV stream; `cells` counts the tokens that the KV cache has for it, also while it is idle."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.prompt: abc.Sequence[int] = ()  # Tokens to prefill; empty while idle.
        self.cells = 0  # Committed tokens.
        self.next_token: int | None = None  # Sampled, not committed yet.
        self.known_token: int | None = None  # The token after a prompt that is computed again, which was sampled once.
        self.awaiting_turn = False  # Logits wait for the turn of their grammar.
        self.order = 0  # Age of the request: higher is younger.
        self.adapters = NO_ADAPTERS
        self.grid: Grid | None = None  # The fixed cuts of a reproducible request; None for others.
        self.lookup: PromptLookup | None = None  # None where the request may not guess.
        self.guess: list[int] = []  # Tokens to try in the next step.
        self.images = PromptImages()
        self.prefix: Prefix | None = None  # Tokens of the cells that other requests may reuse.
        self.cached = 0  # Cells that the request did not have to compute and that are not reported yet.
        self.awaited = 0  # Cells to copy from another sequence once that has computed them.

    def __repr__(self) -> str:
        return f"<Sequence {self.number} {self.phase.value} cells={self.cells} prompt={len(self.prompt)}>"

    @property
    def phase(self) -> Phase:
        """The work that the sequence needs next."""
        if not self.prompt:
            return Phase.IDLE
        if self.awaited:
            return Phase.FOLLOW
        if self.images.awaited:
            return Phase.ENCODE
        if self.awaiting_turn:
            return Phase.SAMPLE
        return Phase.PREFILL if self.next_token is None else Phase.DECODE

    @property
    def remaining(self) -> int:
        """Prompt tokens that are not committed yet."""
        return len(self.prompt) - self.cells

    @property
    def stretch(self) -> int:
        """Prompt tokens that fit one decode: up to the end or the start of an image, or up to the next fixed cut."""
        most = self.images.stretch(self.cells, len(self.prompt))
        return most if self.grid is None else min(most, self.grid.stretch(self.cells))

    def start(self, prompt: abc.Sequence[int], order: int, prefix: Prefix | None = None, cached: int = 0) -> None:
        """Start a request: a prompt of at least one token, `cached` of them in the cells; `order` is its age."""
        if self.phase is not Phase.IDLE or not cached <= len(prompt) - 1:
            raise ValueError(f"cannot start in {self!r} with {len(prompt)} prompt tokens")
        self.prompt = prompt
        self.order = order
        self.prefix = prefix
        self.cells = self.cached = cached

    def reuse(self, tokens: int) -> None:
        """Continue with `tokens` cells that were copied, possibly 0."""
        self.awaited = 0
        self.cells = self.cached = tokens

    def commit(self, tokens: int) -> None:
        """Count `tokens` more cells, after their decode returned 0."""
        self.cells += tokens

    def await_turn(self) -> None:
        """Wait for the turn to sample the logits of the last row."""
        self.awaiting_turn = True
        self.next_token = None

    def accept(self, token: int) -> None:
        """Set the sampled token, which the next step decodes."""
        self.awaiting_turn = False
        self.next_token = token

    def retire(self, prefix: Prefix) -> None:
        """Forget the request; its cells stay for prompts with the same prefix."""
        cells = self.cells
        self.clear()
        self.cells = cells
        self.prefix = prefix

    def clear(self) -> None:
        """Forget everything; the caller has removed the cells."""
        self.prompt = ()
        self.cells = self.cached = self.awaited = 0
        self.next_token = None
        self.known_token = None
        self.awaiting_turn = False
        self.lookup = None
        self.guess = []
        self.images.clear()
        self.grid = None
        self.prefix = None


def mean_cells(sequences: list[Sequence]) -> int:
    """Return the mean depth of these sequences, by which the cost of equal rows or chunks of each is counted."""
    cells = 0
    # A plain loop, because it runs several times a step.
    for sequence in sequences:
        cells += sequence.cells
    return cells // len(sequences)
