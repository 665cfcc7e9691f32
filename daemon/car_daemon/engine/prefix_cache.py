"""Prefix reuse: where a request starts, so that the least of its prompt has to be computed."""

from typing import Protocol

import numpy as np

from car_daemon.engine.batching.adapter_turns import NO_ADAPTERS, AdapterSet
from car_daemon.engine.batching.prefix import Prefix, prefix_of
from car_daemon.engine.batching.sequence import Phase, Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.saved_cells import SavedCells, SavedPrefix

# What has fewer cells is computed again before it is worth a place in host memory.
_WORTH_SAVING = 128

# llama.cpp copies all the cells that a sequence can have, for one follower after the other: a smaller share of them,
# and those that more of them follow, are cheaper to save once and to restore.
_WORTH_COPYING = 1 / 4
_FEW_FOLLOWERS = 2

# A leader in one of these will still compute more of its prompt.
_COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class CellContext(Protocol):
    """A context whose sequences can be cut, copied out and back in."""

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Give an empty sequence the cells of another one; the next decode copies as many as a sequence can have."""
        ...

    def needs_from(self, cells: int) -> int:
        """Return the lowest position that the token after so many cells looks at."""
        ...

    def holds_from(self, number: int) -> int:
        """Return the lowest position that a sequence holds, -1 where it is empty."""
        ...

    def saves_from(self, number: int) -> int:
        """Return the lowest position that saving a sequence keeps."""
        ...

    def saved_size(self, number: int) -> int:
        """Return the bytes that saving a sequence takes."""
        ...

    def save(self, number: int) -> memoryview:
        """Return a sequence's cells."""
        ...

    def restore(self, number: int, saved: memoryview) -> bool:
        """Put cells into an empty sequence, which may be another one; False where llama.cpp refuses."""
        ...


class PrefixCache:
    """Starts and retires requests; `reuses` is False where the model's memory cannot drop a tail."""

    def __init__(self, context: CellContext, table: SequenceTable, saved: SavedCells, *, reuses: bool) -> None:
        self._context = context
        self._table = table
        self._saved = saved
        self._reuses = reuses
        # Mutable state: whom a sequence follows by its number, with that one's order; totals since the start.
        self._leaders: dict[int, tuple[Sequence, int]] = {}
        self.counters = {"cache_hits": 0.0, "cached_tokens": 0.0, "evicted_sequences": 0.0}

    def start(self, prompt: list[int], namespace: str | None, adapters: AdapterSet = NO_ADAPTERS) -> Sequence | None:
        """Start a prompt in an idle sequence; None where all are taken. Without a namespace nothing is reused."""
        idle = self._table.idle
        if not idle:
            return None
        order = self._table.next_order()
        if namespace is None or not self._reuses:
            sequence = self._emptied(idle[0])
            sequence.start(prompt, order)
        else:
            # Cells are made with adapters and good for no others.
            prefix = prefix_of(prompt, f"{namespace}\n{adapters}")
            sequence = self._start_cached(prompt, prefix, idle, order)
        sequence.adapters = adapters
        return sequence

    def settle(self) -> None:
        """Let those go on whose leader has computed what they share, or will not."""
        for number, (leader, order) in list(self._leaders.items()):
            sequence = self._table.sequences[number]
            at_hand = leader.cells if leader.order == order else 0
            if at_hand < sequence.awaited and leader.order == order and leader.phase in _COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            self._share(leader, sequence, min(at_hand, sequence.awaited), followers)

    def retire(self, sequence: Sequence, sampled: list[int]) -> None:
        """End a request in a sequence; its cells stay where others may use them. `sampled` are the answer's tokens."""
        prefix = sequence.prefix
        self._leaders.pop(sequence.number, None)
        if prefix is None or not self._reuses or sequence.cells == 0:
            self._empty(sequence)
            return
        tokens = np.concatenate((prefix.tokens, np.array(sampled, np.int32)))
        if sequence.cells > len(tokens):
            # Guesses that came true after the token that ended it.
            self._context.cut(sequence.number, len(tokens))
            sequence.cells = len(tokens)
        sequence.retire(Prefix(tokens[: sequence.cells], prefix.namespace))

    def leave(self, sequence: Sequence) -> None:
        """Empty a sequence whose request is parked."""
        self._leaders.pop(sequence.number, None)
        self._empty(sequence)

    def _start_cached(self, prompt: list[int], prefix: Prefix, idle: list[Sequence], order: int) -> Sequence:
        # The last token of a prompt is always computed: its logits are not kept.
        most = prefix.cut(len(prompt) - 1)
        warm_tokens, warm = self._best(idle, most)
        saved_tokens, saved = self._saved.longest(most)
        busy_tokens, busy = self._best([each for each in self._table.sequences if each not in idle], most)
        if warm is not None and warm_tokens >= max(saved_tokens, busy_tokens):
            if warm.cells - warm_tokens > warm_tokens:
                # More of it is of no use here than is: another conversation's, which may go on.
                self._save_if_worth(warm)
            self._context.cut(warm.number, warm_tokens)
            warm.start(prompt, order, prefix, warm_tokens)
            self._count(warm_tokens)
            return warm
        sequence = self._emptied(idle[0])
        sequence.start(prompt, order, prefix)
        if saved is not None and saved_tokens >= busy_tokens:
            self._restore(saved, sequence, saved_tokens)
        elif busy is not None:
            sequence.follow(busy_tokens)
            self._leaders[sequence.number] = busy, busy.order
        return sequence

    def _share(self, leader: Sequence, sequence: Sequence, tokens: int, followers: int) -> None:
        """Give one of so many followers what it shares with its leader."""
        assert sequence.prefix is not None
        at_hand, saved = self._saved.longest(sequence.prefix.cut(tokens))
        if saved is not None and at_hand == tokens:
            self._restore(saved, sequence, tokens)
        elif not tokens or not self._goes_on(leader, tokens):
            sequence.reuse(0)
        elif self._copies(leader, tokens, followers):
            self._context.copy(leader.number, sequence.number)
            self._reuse(sequence, tokens)
        elif self._saved_go_on(leader, tokens):
            self._restore(self._snapshot(leader), sequence, tokens)
        else:
            sequence.reuse(0)

    def _copies(self, leader: Sequence, tokens: int, followers: int) -> bool:
        """Whether that is copied within the context: it costs less, or there is no other way and it is worth it."""
        if tokens >= self._table.context_tokens * _WORTH_COPYING and followers <= _FEW_FOLLOWERS:
            return True
        return tokens >= _WORTH_SAVING and not self._saved_go_on(leader, tokens)

    def _goes_on(self, sequence: Sequence, tokens: int) -> bool:
        """Whether a sequence, once it is cut to so many tokens, has all that the next one looks at."""
        return self._context.holds_from(sequence.number) <= self._context.needs_from(tokens)

    def _saved_go_on(self, sequence: Sequence, tokens: int) -> bool:
        """The same for what would be saved of it now."""
        return self._context.saves_from(sequence.number) <= self._context.needs_from(tokens)

    def _snapshot(self, sequence: Sequence) -> SavedPrefix:
        assert sequence.prefix is not None
        lowest = self._context.saves_from(sequence.number)
        saved = SavedPrefix(sequence.prefix.cut(sequence.cells), self._context.save(sequence.number), lowest)
        self._saved.keep(saved)
        return saved

    def _restore(self, saved: SavedPrefix, sequence: Sequence, tokens: int) -> None:
        if not self._context.restore(sequence.number, saved.cells):
            sequence.reuse(0)
            return
        self._saved.touch(saved)
        self._reuse(sequence, tokens)

    def _reuse(self, sequence: Sequence, tokens: int) -> None:
        self._context.cut(sequence.number, tokens)
        sequence.reuse(tokens)
        self._count(tokens)

    def _emptied(self, sequence: Sequence) -> Sequence:
        """Make room in a sequence; a long prefix moves to host memory."""
        if sequence.cells:
            self.counters["evicted_sequences"] += 1
        self._save_if_worth(sequence)
        self._empty(sequence)
        return sequence

    def _save_if_worth(self, sequence: Sequence) -> None:
        worth = sequence.prefix is not None and sequence.cells >= _WORTH_SAVING
        if worth and self._saved.fits(self._context.saved_size(sequence.number)):
            self._snapshot(sequence)

    def _empty(self, sequence: Sequence) -> None:
        self._context.cut(sequence.number, 0)
        sequence.clear()

    def _count(self, tokens: int) -> None:
        self.counters["cache_hits"] += 1
        self.counters["cached_tokens"] += tokens

    def _best(self, sequences: list[Sequence], prefix: Prefix) -> tuple[int, Sequence | None]:
        """Return the sequence that shares the most tokens, of several the one that has most of them, and how many."""
        shares = [(each.prefix.shared(prefix), each) for each in sequences if each.prefix is not None]
        of_use = [share for share in shares if share[0] and self._goes_on(share[1], share[0])]
        return max(of_use, key=lambda share: (share[0], min(share[0], share[1].cells)), default=(0, None))
