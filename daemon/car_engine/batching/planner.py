"""The step planner: whose turn it is, and the rows of the next step."""

from dataclasses import dataclass

from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.costs import StepCosts
from car_engine.batching.decode import DecodeBatch, DecodePacker, Guesser
from car_engine.batching.prefill import PrefillPlanner, PromptChunk, Round
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import Demand, SequenceTable

# A change costs a few milliseconds: rare enough for throughput, frequent enough for readers.
_SLICE_S = 0.100


class AdapterTurns:
    """Adapter sets take turns by time; `now` is the caller's clock in seconds."""

    def __init__(self) -> None:
        self.current: AdapterSet = NO_ADAPTERS
        self._until = 0.0  # End of the current turn.
        self._waiting: list[AdapterSet] = []  # Other sets with work, longest waiting first.

    def choose(self, working: set[AdapterSet], now: float) -> AdapterSet:
        """Return the set for the next step: a set with work, or the current set if there is no work."""
        if working == {self.current}:
            self._waiting = []
        elif working:
            self._waiting = [each for each in self._waiting if each in working]
            self._waiting += sorted(working.difference(self._waiting, [self.current]))
            if self.current not in working or now >= self._until:
                if self.current in working:
                    self._waiting.append(self.current)
                self.current = self._waiting.pop(0)
                self._until = now + _SLICE_S
        return self.current


_IDLE = Demand()


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step: decodes by ascending number, each sampled before the next, or chunks of one length."""

    decode: list[DecodeBatch]
    prefill: list[PromptChunk]
    adapters: AdapterSet = NO_ADAPTERS


class StepPlanner:
    """Alternate a decode of every decoder and a prefill batch, while there is work for both.

    Requests with other adapters take turns by time.
    """

    def __init__(
        self,
        costs: StepCosts,
        batch_tokens: int,
        *,
        step_target: float,
        idle_target: float,
        memory: Memory,
        batches_prompts: bool = True,
    ) -> None:
        self._turns = AdapterTurns()
        self._packer = DecodePacker(costs, batch_tokens, pads=memory.takes_back)
        self._guesser = Guesser(costs, batch_tokens, step_target, memory.guesses)
        self._prefill = PrefillPlanner(
            costs,
            batch_tokens,
            step_target=step_target,
            idle_target=idle_target,
            batches_prompts=batches_prompts,
        )
        self._rounds: dict[AdapterSet, Round] = {}  # Of adapter sets with work.

    def __repr__(self) -> str:
        rounds = " ".join(f"{list(adapters)}: {each}" for adapters, each in self._rounds.items())
        return f"<StepPlanner adapters={list(self._turns.current)} {rounds}>"

    def plan(self, table: SequenceTable, now: float, paused: float = 0.0) -> Step:
        """Return the next step, empty if no sequence needs rows; `now` in seconds, `paused` since the last step."""
        demand = table.demand()
        adapters = self._turns.choose(set(demand), now)
        if adapters not in self._rounds:
            # The decode of another set is not a reason to prefill for this one.
            self._rounds = {each: known for each, known in self._rounds.items() if each in demand}
            self._rounds[adapters] = Round()
        mine, current = demand.get(adapters, _IDLE), self._rounds[adapters]
        decoded, current.decoded, current.paused = current.decoded, None, paused
        if chunks := self._prefill.chunks(table, mine, current, decoded):
            return Step([], chunks, adapters)
        if not mine.decoding:
            return Step([], [], adapters)
        batches, seconds = self._packer.pack(mine.decoding, table)
        current.decoded = seconds
        current.decodes += 1
        # After prompts answers have waited already: decodes with guesses take longer.
        if decoded is not None and not mine.prefilling:
            for batch in batches:
                if batch.sequences[0].lookup is not None:
                    current.decoded += self._guesser.plan(batch, table.context_tokens, seconds)
        return Step(batches, [], adapters)
