"""The sequences of a context, the request that runs in each, and what they need next."""

from collections import abc, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.guesses import PromptLookup
from car_engine.batching.prefix import Checkpoint, Prefix
from car_engine.batching.reuse.read_prompts import KnownPrompt


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
        self.labels = 0  # To read at the end of the prompt, in place of a sample.
        self.yields = False  # Its prompt is read only while no answer with the same adapters is written.
        self.awaiting_turn = False  # Logits wait for the turn of their grammar.
        self.order = 0  # Age of the request: higher is younger.
        self.adapters = NO_ADAPTERS
        self.grid: Grid | None = None  # The fixed cuts of a reproducible request; None for others.
        self.lookup: PromptLookup | None = None  # None if the request may not guess.
        self.guess: list[int] = []  # Tokens to try in the next step.
        self.images = PromptImages()
        self.prefix: Prefix | None = None  # Tokens of the cells that other requests may reuse.
        self.had = 0  # Cells that the request had when it was parked: it gets no more if it finds them again.
        self.cached = 0  # Cells that the request did not have to compute and that are not reported yet.
        self.awaited = 0  # Cells to copy from another sequence once that has computed them.
        self.leader: tuple[Sequence, int] | None = None  # That sequence, and the age of its request.
        self.stops: list[int] = []  # Cells after which the state is kept, ascending.
        self.held: Checkpoint | None = None  # The state to which a decision goes back.
        self.read: KnownPrompt | None = None  # The memory of its prompt, which outlives the cells.

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
        """Prompt tokens that fit one decode: up to the end or the start of an image, a stop, or the next fixed cut."""
        most = self.images.stretch(self.cells, len(self.prompt))
        if self.stops and self.stops[0] > self.cells and self.images.at(self.cells) is None:
            most = min(most, self.stops[0] - self.cells)
        return most if self.grid is None else min(most, self.grid.stretch(self.cells))

    def stop_at(self, cells: int) -> None:
        """Stop after so many cells, unless the sequence has them already."""
        if cells > self.cells and cells not in self.stops:
            self.stops = sorted([*self.stops, cells])

    def start(
        self, prompt: abc.Sequence[int], order: int, prefix: Prefix | None = None, cells: int = 0, had: int = 0
    ) -> None:
        """Start a request: a prompt of at least one token, the first ones in the cells; `order` is its age."""
        if self.phase is not Phase.IDLE or not cells <= len(prompt) - 1:
            raise ValueError(f"cannot start in {self!r} with {len(prompt)} prompt tokens")
        self.prompt = prompt
        self.yields = False
        self.order = order
        self.prefix = prefix
        self.had = had
        self.reuse(cells)

    def reuse(self, tokens: int) -> None:
        """Continue with `tokens` cells that were copied, possibly 0."""
        self.awaited, self.leader = 0, None
        self.cells, self.cached = tokens, max(0, tokens - self.had)

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
        self.leader = None
        self.next_token = None
        self.known_token = None
        self.labels = 0
        self.awaiting_turn = False
        self.lookup = None
        self.guess = []
        self.stops = []
        self.read = None
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


class ImageRows(NamedTuple):
    """An image in a prompt: rows of shape (positions, width) in place of tokens from `start` on."""

    start: int
    rows: Any

    @property
    def end(self) -> int:
        """The first position after it."""
        return self.start + len(self.rows)


class PromptImages:
    """Encoded images in order of position, and the tokens around them; `awaited` while they are being encoded."""

    def __init__(self) -> None:
        self._images: list[ImageRows] = []
        self._tokens: list[tuple[int, list[int]]] = []  # by position
        self.awaited = False

    def __repr__(self) -> str:
        return f"<PromptImages {len(self._images)}{' awaited' if self.awaited else ''}>"

    def set(self, images: list[ImageRows], tokens: list[tuple[int, list[int]]]) -> None:
        """Set the rows of the prompt's images and the tokens around them, in order of position."""
        self._images = images
        self._tokens = tokens
        self.awaited = False

    def clear(self) -> None:
        """Forget the images."""
        self.set([], [])

    def put_into(self, prompt: abc.Sequence[int]) -> list[int]:
        """Return a prompt with the tokens around its images in place of their placeholders."""
        placed = list(prompt)
        for start, tokens in self._tokens:
            placed[start : start + len(tokens)] = tokens
        return placed

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self._images)

    def at(self, cell: int) -> ImageRows | None:
        """Return the image that has a row at this cell."""
        return next((image for image in self._images if image.start <= cell < image.end), None)

    def stretch(self, cell: int, end: int) -> int:
        """Return how many positions from this cell fit one decode: up to an image's end or start, at most to `end`."""
        if not self._images:
            return end - cell
        if (image := self.at(cell)) is not None:
            return image.end - cell
        return min((image.start for image in self._images if image.start > cell), default=end) - cell


# Prompt tokens that are computed together. More pause the answers of others for longer; fewer cost more time a token.
GRID_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """Cuts that depend on the request alone: the prompt at multiples of `size`, its answer token by token.

    A parked request whose cells were dropped computes its answer so far by the same cuts.
    """

    prompt_tokens: int
    size: int = GRID_TOKENS

    def stretch(self, cells: int) -> int:
        """Return how many tokens after this many cells are computed together."""
        return min(self.size - cells % self.size, self.prompt_tokens - cells) if cells < self.prompt_tokens else 1


_BUSY = (Phase.PREFILL, Phase.DECODE, Phase.SAMPLE)
_by_age = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Demand:
    """The sequences with one set of adapters that need rows: decoders by ascending number, prompts oldest first."""

    decoding: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)


class SequenceTable:
    """The sequences 0..count-1 of one context, each of `context_tokens` cells."""

    def __init__(self, count: int, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.sequences = [Sequence(number) for number in range(count)]
        self.started = 0  # Requests ever; the age of the newest.

    def __repr__(self) -> str:
        phases = [sequence.phase for sequence in self.sequences]
        counts = " ".join(f"{phase.value}={phases.count(phase)}" for phase in Phase if phase in phases)
        return f"<SequenceTable {counts} started={self.started}>"

    def next_order(self) -> int:
        """Return the age of a request that starts now: higher is younger."""
        self.started += 1
        return self.started

    @property
    def idle(self) -> list[Sequence]:
        """The sequences without a request, by number."""
        return [sequence for sequence in self.sequences if sequence.phase is Phase.IDLE]

    @property
    def busy(self) -> bool:
        """Whether a step can do work for any sequence."""
        # A plain loop, because it runs twice a step and mostly ends at the first sequence.
        for sequence in self.sequences:  # noqa: SIM110 - see above
            if sequence.phase in _BUSY:
                return True
        return False

    @property
    def writes(self) -> bool:
        """Whether an answer is being written."""
        return any(sequence.phase is Phase.DECODE for sequence in self.sequences)

    @property
    def reproducing(self) -> bool:
        """Whether a request has to be reproducible."""
        # A plain loop, because it runs every step.
        for sequence in self.sequences:  # noqa: SIM110 - see above
            if sequence.grid is not None:
                return True
        return False

    def demand(self) -> dict[AdapterSet, Demand]:
        """Return the sequences that need rows in a decode, by their adapters."""
        demand: defaultdict[AdapterSet, Demand] = defaultdict(Demand)
        for sequence in self.sequences:
            phase = sequence.phase
            if phase is Phase.DECODE:
                demand[sequence.adapters].decoding.append(sequence)
            elif phase is Phase.PREFILL:
                demand[sequence.adapters].prefilling.append(sequence)
        for each in demand.values():
            if each.decoding:
                each.prefilling[:] = [prompt for prompt in each.prefilling if not prompt.yields or self._is_due(prompt)]
            each.prefilling.sort(key=_by_age)
        return demand

    def _is_due(self, leader: Sequence) -> bool:
        """Whether a sequence waits for cells of this one, directly or not, and does not yield."""
        followers = [each for each in self.sequences if each.leader is not None and each.leader[0] is leader]
        return any(not each.yields or self._is_due(each) for each in followers)

    def can_pad(self, number: int) -> bool:
        """Whether a sequence of this number exists and has room for a padding row."""
        return 0 <= number < len(self.sequences) and self.sequences[number].cells < self.context_tokens
