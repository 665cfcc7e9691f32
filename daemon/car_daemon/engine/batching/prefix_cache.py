"""Prefix reuse: start each request where the least of its prompt has to be computed."""

from car_daemon.engine.batching.cells import WORTH_SAVING, CellContext, CellMover, Reach
from car_daemon.engine.batching.grid import Grid
from car_daemon.engine.batching.prefix import Prefix, prefix_of
from car_daemon.engine.batching.saved_cells import SavedCells
from car_daemon.engine.batching.sequence import Phase, Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.ipc.types import NO_ADAPTERS, AdapterSet

# llama.cpp copies the whole capacity of a sequence, for one follower after the other: a smaller part of it, and cells
# with more followers, are cheaper to save once and restore.
_WORTH_COPYING = 1 / 4
_FEW_FOLLOWERS = 2

# Phases in which a leader will still compute more of its prompt.
_COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class PrefixCache:
    """Start and retire requests; `reuses` is False where the model's memory cannot drop a tail."""

    def __init__(self, context: CellContext, table: SequenceTable, saved: SavedCells, *, reuses: bool) -> None:
        self._table = table
        self._saved = saved
        self._reuses = reuses
        self._reach = Reach(context)
        self._cells = CellMover(context, saved, self._reach)
        self._leaders: dict[int, tuple[Sequence, int]] = {}  # By follower's number: the leader and its request's order.

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count:.0f}" for name, count in self.counters.items())
        return f"<PrefixCache followers={len(self._leaders)} {counts}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, and the bytes of host memory that cells take now."""
        return {**self._cells.counters, "saved_bytes": self._saved.bytes}

    def start(
        self,
        prompt: list[int],
        namespace: str | None,
        adapters: AdapterSet = NO_ADAPTERS,
        grid: Grid | None = None,
    ) -> Sequence | None:
        """Start a prompt in an idle sequence; None if there is none. Without a namespace no cells are reused."""
        idle = self._table.idle
        if not idle:
            return None
        order = self._table.next_order()
        if namespace is None or not self._reuses:
            sequence = idle[0]
            self._cells.evict(sequence)
            sequence.start(prompt, order)
        else:
            # Cells computed with other adapters are different.
            prefix = prefix_of(prompt, f"{namespace}\n{adapters}", 1 if grid is None else grid.size)
            sequence = self._start_cached(prompt, prefix, idle, order)
        sequence.adapters = adapters
        sequence.grid = grid
        return sequence

    def at_hand(self, prompt: list[int], namespace: str | None, adapters: AdapterSet) -> int:
        """Return how many cells of a prompt exist now that it may reuse."""
        if namespace is None or not self._reuses:
            return 0
        most = prefix_of(prompt, f"{namespace}\n{adapters}").cut(len(prompt) - 1)
        tokens, sequence = self._best([each for each in self._table.sequences if each.cells], most)
        computed = 0 if sequence is None else min(tokens, sequence.cells)
        return max(computed, self._saved.longest(most)[0])

    @property
    def context_tokens(self) -> int:
        """Cells of a sequence."""
        return self._table.context_tokens

    def supply_followers(self) -> None:
        """Continue followers whose leader has computed the common tokens, or will not."""
        for number, (leader, order) in list(self._leaders.items()):
            sequence = self._table.sequences[number]
            computed = leader.cells if leader.order == order else 0
            if computed < sequence.awaited and leader.order == order and leader.phase in _COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            assert sequence.prefix is not None
            tokens = sequence.prefix.whole(min(computed, sequence.awaited))
            saved_tokens, saved = self._saved.longest(sequence.prefix.cut(tokens))
            if saved is not None and saved_tokens == tokens:
                self._cells.restore(saved, sequence, tokens)
            elif not tokens or not self._reach.continues(leader, tokens):
                sequence.reuse(0)
            elif tokens >= self._table.context_tokens * _WORTH_COPYING and followers <= _FEW_FOLLOWERS:
                self._cells.copy(leader, sequence, tokens)
            elif self._reach.continues_saved(leader, tokens):
                self._cells.restore(self._cells.save(leader), sequence, tokens)
            elif tokens >= WORTH_SAVING:
                # Copying within the context costs more, but is the only way.
                self._cells.copy(leader, sequence, tokens)
            else:
                sequence.reuse(0)

    def retire(self, sequence: Sequence, sampled: list[int]) -> None:
        """End a request; its cells stay as far as others may reuse them. `sampled` are the answer's tokens."""
        prefix = sequence.prefix
        self._leaders.pop(sequence.number, None)
        if prefix is None or not self._reuses or sequence.cells == 0:
            self._cells.empty(sequence)
            return
        tokens = prefix.after(sampled)
        kept = tokens.whole(min(sequence.cells, len(tokens)))
        if sequence.cells > kept:
            # Right guesses after the token that ended the request, or what no other reproducible request computes.
            self._cells.cut(sequence, kept)
            sequence.cells = kept
        sequence.retire(tokens.cut(kept))

    def discard(self, sequence: Sequence) -> None:
        """Empty a sequence whose request was parked or failed."""
        self._leaders.pop(sequence.number, None)
        self._cells.empty(sequence)

    def _start_cached(self, prompt: list[int], prefix: Prefix, idle: list[Sequence], order: int) -> Sequence:
        # The last token of a prompt is always computed: its logits are not kept.
        most = prefix.cut(len(prompt) - 1)
        warm_tokens, warm = self._best(idle, most)
        saved_tokens, saved = self._saved.longest(most)
        busy_tokens, busy = self._best([each for each in self._table.sequences if each not in idle], most)
        if warm is not None and warm_tokens >= max(saved_tokens, busy_tokens):
            if warm.cells - warm_tokens > warm_tokens:
                # Most of it belongs to another conversation, which may continue.
                self._cells.save_if_worth(warm)
            self._cells.cut(warm, warm_tokens)
            warm.start(prompt, order, prefix, warm_tokens)
            self._cells.count(warm_tokens)
            return warm
        sequence = idle[0]
        self._cells.evict(sequence)
        sequence.start(prompt, order, prefix)
        if saved is not None and saved_tokens >= busy_tokens:
            self._cells.restore(saved, sequence, saved_tokens)
        elif busy is not None:
            sequence.awaited = busy_tokens
            self._leaders[sequence.number] = busy, busy.order
        return sequence

    def _best(self, sequences: list[Sequence], prefix: Prefix) -> tuple[int, Sequence | None]:
        """Return the number of tokens that can be reused at most, and the sequence with them.

        Of several, the one that has the most cells of them.
        """
        common = [(each.prefix.common(prefix), each) for each in sequences if each.prefix is not None]
        usable = [(tokens, each) for tokens, each in common if tokens and self._reach.continues(each, tokens)]
        return max(usable, key=lambda found: (found[0], min(found[0], found[1].cells)), default=(0, None))
