"""All sequences of a context."""

from collections import defaultdict
from dataclasses import dataclass, field
from operator import attrgetter

from car_daemon.engine.batching.sequence import Phase, Sequence
from car_daemon.ipc.types import AdapterSet

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
        """The sequences without a request, in the order in which to use them.

        Empty ones first, then by number, because only consecutive numbers share a micro-batch.
        """
        idle = [sequence for sequence in self.sequences if sequence.phase is Phase.IDLE]
        return sorted(idle, key=lambda sequence: (sequence.cells > 0, sequence.number))

    @property
    def busy(self) -> bool:
        """Whether a step can do work for any sequence."""
        # A plain loop, because it runs twice a step and mostly ends at the first sequence.
        for sequence in self.sequences:  # noqa: SIM110 - see above
            if sequence.phase in _BUSY:
                return True
        return False

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
            each.prefilling.sort(key=_by_age)
        return demand

    def can_pad(self, number: int) -> bool:
        """Whether a sequence of this number exists and has room for a padding row."""
        return 0 <= number < len(self.sequences) and self.sequences[number].cells < self.context_tokens
