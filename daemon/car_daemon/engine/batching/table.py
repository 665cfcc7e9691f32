"""All sequences of a context: who is idle, who prefills, who decodes."""

from car_daemon.engine.batching.adapter_turns import NO_ADAPTERS, AdapterSet
from car_daemon.engine.batching.sequence import Phase, Sequence

_WORKS = (Phase.PREFILL, Phase.DECODE, Phase.SAMPLE)


class SequenceTable:
    """The sequences 0..count-1 of one context, each of `context_tokens` cells."""

    def __init__(self, count: int, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.sequences = [Sequence(number) for number in range(count)]
        # Mutable state besides the sequences' own: how many requests were started, and the adapters in turn.
        self._started = 0
        self.turn = NO_ADAPTERS

    def next_order(self) -> int:
        """Return the age of a request that starts now: higher is younger."""
        self._started += 1
        return self._started

    @property
    def idle(self) -> list[Sequence]:
        """The sequences without a request, in the order to take them.

        Low numbers stay together, and only consecutive numbers share a micro-batch; but first those that hold nothing.
        """
        idle = [sequence for sequence in self.sequences if sequence.phase is Phase.IDLE]
        return sorted(idle, key=lambda sequence: (sequence.cells > 0, sequence.number))

    @property
    def busy(self) -> bool:
        """Whether any sequence has work that a step can do."""
        return any(sequence.phase in _WORKS for sequence in self.sequences)

    @property
    def working(self) -> set[AdapterSet]:
        """The sets of adapters of all sequences that need rows in a decode."""
        return {sequence.adapters for sequence in self.sequences if sequence.phase in (Phase.PREFILL, Phase.DECODE)}

    @property
    def decoding(self) -> list[Sequence]:
        """The sequences in turn that decode, by ascending number."""
        return [sequence for sequence in self.sequences if self._in_turn(sequence, Phase.DECODE)]

    @property
    def prefilling(self) -> list[Sequence]:
        """The sequences in turn that prefill, first come first."""
        waiting = [sequence for sequence in self.sequences if self.prefills(sequence)]
        return sorted(waiting, key=lambda sequence: sequence.order)

    def prefills(self, sequence: Sequence) -> bool:
        """Whether a sequence is in turn and prefills."""
        return self._in_turn(sequence, Phase.PREFILL)

    def _in_turn(self, sequence: Sequence, phase: Phase) -> bool:
        return sequence.phase is phase and sequence.adapters == self.turn

    def can_pad(self, number: int) -> bool:
        """Whether there is a sequence of this number, and a padding row fits at its end."""
        return 0 <= number < len(self.sequences) and self.sequences[number].cells < self.context_tokens
