"""One KV stream and the request that runs in it."""

from collections.abc import Sequence as Rows
from enum import Enum
from typing import Any, NamedTuple

from car_daemon.engine.batching.adapter_turns import NO_ADAPTERS
from car_daemon.engine.batching.lookup import Lookup
from car_daemon.engine.batching.prefix import Prefix


class Phase(Enum):
    """What a sequence needs from the next step."""

    IDLE = "idle"
    FOLLOW = "follow"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    SAMPLE = "sample"


class Picture(NamedTuple):
    """An image in a prompt: rows of shape (positions, width) in place of tokens from `start` on."""

    start: int
    rows: Any

    @property
    def end(self) -> int:
        """The first position after it."""
        return self.start + len(self.rows)


class Sequence:
    """One KV stream; `cells` counts the tokens that the KV cache holds for it, also while it is idle."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Mutable state: the tokens to prefill, the committed cells, the sampled token that is not in them yet, the
        # one that was sampled already when a parked request is computed again, whether logits wait to be sampled,
        # and with which adapters all of it is computed.
        self.prompt: Rows[int] = ()
        self.cells = 0
        self.next_token: int | None = None
        self.known_token: int | None = None
        self.held = False
        self.order = 0
        self.adapters = NO_ADAPTERS
        # Of guesses: what the request said so far, where it may guess, and the tokens to try in the next step.
        self.lookup: Lookup | None = None
        self.guess: list[int] = []
        # Of images: those of the prompt, and whether they are still being encoded.
        self.pictures: list[Picture] = []
        self.blind = False
        # Of the cache: what others may use of the cells (all that an idle sequence holds), how many cells the request
        # did not have to compute, and how many it waits for another sequence to compute.
        self.prefix: Prefix | None = None
        self.cached = 0
        self.awaited = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.number} {self.phase.value} cells={self.cells} prompt={len(self.prompt)}>"

    @property
    def phase(self) -> Phase:
        """What the next step has to do for this sequence."""
        if not len(self.prompt):
            return Phase.IDLE
        if self.awaited:
            return Phase.FOLLOW
        if self.blind:
            return Phase.ENCODE
        if self.held:
            return Phase.SAMPLE
        return Phase.PREFILL if self.next_token is None else Phase.DECODE

    @property
    def fresh(self) -> bool:
        """Whether nothing was computed for it after its prompt."""
        return self.cells <= len(self.prompt)

    @property
    def remaining(self) -> int:
        """Prompt tokens that are not in the cells yet."""
        return len(self.prompt) - self.cells

    @property
    def picture(self) -> "Picture | None":
        """The image that the next cells belong to."""
        return next((picture for picture in self.pictures if picture.start <= self.cells < picture.end), None)

    @property
    def alike(self) -> int:
        """Prompt tokens that may share a decode: up to the end of an image, or to the start of the next."""
        if (picture := self.picture) is not None:
            return picture.end - self.cells
        starts = [picture.start for picture in self.pictures if picture.start > self.cells]
        return min(starts, default=len(self.prompt)) - self.cells

    def see(self, pictures: "list[Picture]") -> None:
        """Take the rows of the prompt's images, which are in order."""
        self.pictures = pictures
        self.blind = False

    def start(self, prompt: Rows[int], order: int, prefix: Prefix | None = None, cached: int = 0) -> None:
        """Take a request's prompt (at least one token), of which `cached` are in the cells; `order` is its age."""
        if self.phase is not Phase.IDLE or not cached <= len(prompt) - 1:
            raise ValueError(f"cannot start in {self!r} with {len(prompt)} prompt tokens")
        self.prompt = prompt
        self.order = order
        self.prefix = prefix
        self.cells = self.cached = cached

    def follow(self, tokens: int) -> None:
        """Wait until another sequence has computed `tokens` of the prompt."""
        self.awaited = tokens

    def reuse(self, tokens: int) -> None:
        """Go on with `tokens` cells that were copied from elsewhere, perhaps none."""
        self.awaited = 0
        self.cells = self.cached = tokens

    def commit(self, tokens: int) -> None:
        """Count `tokens` more cells, after their decode returned 0."""
        self.cells += tokens

    def hold(self) -> None:
        """Wait for a token: the logits are there, the turn to sample them is not."""
        self.held = True
        self.next_token = None

    def accept(self, token: int) -> None:
        """Take the sampled token that the next step decodes."""
        self.held = False
        self.next_token = token

    def restore(self, cells: int, next_token: int | None) -> None:
        """Go on where a parked request was; its cells are back already."""
        self.cells = cells
        self.next_token = next_token

    def retire(self, prefix: Prefix) -> None:
        """Forget the request, but keep its cells for whoever begins with the same tokens."""
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
        self.held = False
        self.lookup = None
        self.guess = []
        self.pictures = []
        self.blind = False
        self.prefix = None


def mean_cells(sequences: list[Sequence]) -> int:
    """Return how deep chunks of one length in these sequences are, as what they cost counts it."""
    return sum(sequence.cells for sequence in sequences) // len(sequences)
