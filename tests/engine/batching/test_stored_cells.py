"""Prefixes in files, on the ledger: which are stored, and requests that go on from them in another engine."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.types import NO_ADAPTERS
from car_engine.batching.cells import CellMover
from car_engine.batching.costs import StepCosts
from car_engine.batching.prefix import Checkpoint, Prefix, SavedPrefix, prefix_of
from car_engine.batching.reuse.expected import Expected, cells_of
from car_engine.batching.reuse.index import Index, Memory
from car_engine.batching.reuse.move_costs import SAVE_BYTE_S, MoveCosts
from car_engine.batching.reuse.stored_cells import StoredCells
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored, Contents, StoredPrefix, file_name
from car_engine.batching.reuse.worth import Worth
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import SequenceTable
from tests.engine.fakes import FakeContext, FakeEngine, run_command, solo
from tests.pace import calls

CONTEXT = 2048
PROMPT = [1 + place * 7 % 26 for place in range(600)]
MINE = "1000:"


class Disk:
    """Files that outlive engines; `limit` is in bytes."""

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self.files: dict[str, tuple[StoredPrefix, Contents]] = {}


class FakeStore:
    """A store whose outcomes wait until they are delivered; `full` fails all writes."""

    def __init__(self, disk: Disk, *, full: bool = False) -> None:
        self.disk = disk
        self.full = full
        self.writing = False
        self.reads: list[StoredPrefix] = []
        self.writes: list[tuple[Contents, Prefix]] = []
        self.free = True  # no cells that were read are in memory
        self.pieces = 0  # to read ahead

    @property
    def found(self) -> Sequence[StoredPrefix]:
        return [stored for stored, _ in self.disk.files.values()]

    def fits(self, size: int) -> bool:
        return size <= self.disk.limit

    def read(self, stored: StoredPrefix) -> None:
        self.reads.append(stored)

    def read_ahead(self) -> bool:
        self.pieces = max(0, self.pieces - 1)
        return self.pieces > 0

    def taken(self) -> None:
        assert not self.free
        self.free = True

    def write(self, contents: Contents, prefix: Prefix) -> None:
        assert not self.writing
        self.writing = True
        self.writes.append((contents, prefix))

    def remove(self, stored: StoredPrefix) -> None:
        del self.disk.files[stored.name]

    def next_read(self) -> CellsRead:
        """Return the outcome of the oldest read."""
        assert self.free
        self.free = False
        stored = self.reads.pop(0)
        kept = self.disk.files.get(stored.name)
        return CellsRead(stored, None if kept is None else kept[1], 0.001)

    def next_stored(self) -> CellsStored:
        """Return the outcome of the write."""
        contents, prefix = self.writes.pop(0)
        self.writing = False
        if self.full:
            return CellsStored(None)
        stored = StoredPrefix(prefix, file_name(prefix), len(contents.cells), tuple(contents.states))
        self.disk.files[stored.name] = stored, contents
        return CellsStored(stored)


class Life:
    """One engine on the disk."""

    def __init__(self, disk: Disk, context: FakeContext | None = None, *, full: bool = False, saved: int = 0) -> None:
        self.store = FakeStore(disk, full=full)
        self.context = context or FakeContext(4, CONTEXT, batch_tokens=64)
        self.engine = FakeEngine(self.context, store=self.store, saved_bytes=saved)

    def infer(self, key: int, prompt: list[int], namespace: str = MINE, *, delivered: bool = True) -> int:
        """Run a request to its end, check its answer, and return its cached tokens."""
        self.engine.turn(run_command(key, prompt, 5, namespace=namespace))
        while delivered and self.store.reads:
            self.engine.turn(self.store.next_read())
        self.engine.finish()
        assert self.engine.tokens(key) == solo(prompt, 5)
        return self.engine.ends(key)[0].usage.cached_tokens

    def store_all(self) -> int:
        """Store until nothing is worth it; return the number of files written."""
        count = 0
        while self.engine.cache.storing.ready and self.engine.cache.storing.store_next(1.0):
            self.engine.turn(self.store.next_stored())
            count += 1
        return count


def stored_by(*prompts: list[int], disk: Disk | None = None) -> Disk:
    """Return a disk on which an engine stored these prompts."""
    disk = disk or Disk()
    life = Life(disk)
    for key, prompt in enumerate(prompts):
        life.infer(key, prompt)
    life.store_all()
    return disk


def test_a_prefix_survives_its_engine() -> None:
    disk = stored_by(PROMPT)
    life = Life(disk)
    assert life.infer(1, [*PROMPT, 3, 4, 5]) >= len(PROMPT)
    assert life.engine.loop.counters["prefill_tokens"] <= 10
    assert life.engine.loop.counters["stored_hits"] == 1


def test_the_same_prompt_again_computes_its_last_token_alone() -> None:
    assert Life(stored_by(PROMPT)).infer(1, PROMPT) == len(PROMPT) - 1


def test_other_requests_run_while_a_file_is_read() -> None:
    life = Life(stored_by(PROMPT))
    life.engine.turn(run_command(1, [*PROMPT, 3], 5, namespace=MINE))
    assert life.infer(2, [5] * 40, delivered=False) == 0
    assert not life.engine.ends(1)
    life.engine.turn(life.store.next_read())
    life.engine.finish()
    assert life.engine.tokens(1) == solo([*PROMPT, 3], 5)


def test_a_request_whose_file_is_gone_goes_on_in_other_cells_that_are_there() -> None:
    longer = [*PROMPT, *[3] * 100]
    disk = stored_by(longer)
    life = Life(disk)
    life.infer(1, PROMPT[:500])
    disk.files.clear()
    assert life.infer(2, [*longer, 4]) == 500


def test_the_choice_of_the_states_of_a_file_costs_no_cube_of_their_number() -> None:
    def cost(states: int) -> int:
        life = Life(Disk(1 << 30), FakeContext(4, CONTEXT, memory=Memory(states=True)), saved=1 << 30)
        prefix = prefix_of(range(20 * states), cells_of(MINE, NO_ADAPTERS))
        for number in range(1, states):
            life.engine.saved.keep(Checkpoint(prefix.cut(20 * number), memoryview(b"state")))
        life.engine.saved.keep(SavedPrefix(prefix, memoryview(bytes(20 * len(prefix))), len(prefix)))
        counted = calls(lambda: life.engine.cache.storing.store_next(1.0))
        ((contents, _),) = life.store.writes
        assert len(contents.states) == states - 1
        return counted

    assert cost(160) <= 20 * cost(40)


@pytest.mark.parametrize("namespace", ["1001:", "1000:salt", "answers 7"])
def test_a_stored_prefix_belongs_to_its_user_and_salt(namespace: str) -> None:
    assert Life(stored_by(PROMPT)).infer(1, PROMPT, namespace) == 0


def test_answers_of_one_request_leave_no_files() -> None:
    disk = Disk()
    life = Life(disk)
    life.infer(1, PROMPT, "answers 7")
    assert life.store_all() == 0


def test_a_file_that_is_gone_costs_its_request_nothing_but_time() -> None:
    disk = stored_by(PROMPT)
    life = Life(disk)
    disk.files.clear()
    assert life.infer(1, PROMPT) == 0
    assert life.engine.loop.counters["stored_bytes"] == 0
    life.infer(2, [9] * 300)
    assert life.engine.loop.counters["stored_hits"] == 0


def test_cells_that_the_context_refuses_are_computed_and_their_file_goes() -> None:
    disk = stored_by(PROMPT)
    life = Life(disk, FakeContext(4, CONTEXT, batch_tokens=64, restores=False))
    assert life.infer(1, PROMPT) == 0
    assert not disk.files


def test_a_request_that_is_cancelled_while_its_file_is_read_leaves_the_sequence_to_the_next() -> None:
    life = Life(stored_by(PROMPT))
    engine = life.engine
    engine.turn(run_command(1, [*PROMPT, 3], 5, namespace=MINE))
    engine.halt(1)
    engine.turn(run_command(2, [7] * 30, 5, namespace=MINE))
    engine.turn(life.store.next_read())
    engine.finish()
    assert engine.tokens(2) == solo([7] * 30, 5)
    assert life.store.free


def test_requests_for_one_file_share_its_read() -> None:
    life = Life(stored_by(PROMPT))
    prompts = {key: [*PROMPT, key] for key in (1, 2, 3)}
    life.engine.turn(*[run_command(key, prompt, 5, namespace=MINE) for key, prompt in prompts.items()])
    life.engine.turn(life.store.next_read())
    assert not life.store.reads
    life.engine.finish()
    assert all(life.engine.tokens(key) == solo(prompt, 5) for key, prompt in prompts.items())
    assert life.engine.loop.counters["prefill_tokens"] < 30


class Heavy(FakeContext):
    """A context in which each cell counts as 64 KiB, as in a model of some billion weights."""

    def saved_size(self, number: int) -> int:
        """Return the size of 64 KiB a cell."""
        return super().saved_size(number) << 16


def heavy() -> Heavy:
    return Heavy(4, CONTEXT, batch_tokens=64)


def test_a_conversation_is_stored_after_each_answer() -> None:
    disk, said = Disk(), PROMPT[:40]
    life = Life(disk)
    for key in range(5):
        life.infer(key, said)
        assert life.store_all() == 1
        said = [*said, *solo(said, 5), *[6 + key] * 20]
    ((stored, _),) = disk.files.values()
    assert len(stored.prefix) >= len(said) - 21


def test_cells_of_fewer_tokens_than_are_worth_it_are_not_stored() -> None:
    assert not stored_by(PROMPT[:8]).files


def test_a_large_conversation_is_written_again_once_it_has_grown_by_a_quarter() -> None:
    disk = Disk(limit=1 << 30)
    life = Life(disk, heavy())
    life.infer(1, PROMPT)
    assert life.store_all() == 1
    first = [*PROMPT, *solo(PROMPT, 5)]
    life.infer(2, [*first, *[5] * 100])
    assert life.store_all() == 0
    life.infer(3, [*first, *[5] * 100, *[6] * 300])
    assert life.store_all() == 1
    ((stored, _),) = disk.files.values()
    assert len(stored.prefix) >= 1000


def test_a_file_that_was_just_stored_is_not_stored_again_although_others_took_its_room() -> None:
    disk = Disk()
    life = Life(disk)
    life.infer(1, PROMPT)
    assert life.store_all() == 1
    life.engine.turn(CellsStored(None, tuple(disk.files)))
    assert life.store_all() == 0


def test_a_disk_that_is_full_is_tried_once_for_each_prefix() -> None:
    life = Life(Disk(), full=True)
    life.infer(1, PROMPT)
    assert life.store_all() == 1
    assert life.store_all() == 0
    assert life.infer(2, [*PROMPT, 3]) >= len(PROMPT)


def test_what_does_not_fit_is_not_copied() -> None:
    life = Life(Disk(limit=500))
    life.infer(1, PROMPT)
    assert life.store_all() == 0
    assert life.context.saves == 0


def test_cells_in_host_memory_are_stored_without_another_copy() -> None:
    disk = Disk()
    context = FakeContext(1, CONTEXT, batch_tokens=64)
    life = Life(disk, context, saved=100_000)
    life.infer(1, PROMPT)
    life.infer(2, [9] * 700)
    assert context.saves == 1
    assert life.store_all() == 2
    assert context.saves == 2
    assert Life(disk).infer(1, PROMPT) == len(PROMPT) - 1


@pytest.mark.parametrize("memory", [Memory(states=True), Memory(windows=True)])
def test_a_conversation_with_a_state_goes_on_from_its_file(memory: Memory) -> None:
    disk = Disk()
    life = Life(disk, FakeContext(4, CONTEXT, batch_tokens=64, memory=memory))
    life.infer(1, PROMPT)
    life.store_all()
    again = Life(disk, FakeContext(4, CONTEXT, batch_tokens=64, memory=memory))
    assert again.infer(1, [*PROMPT, *solo(PROMPT, 5), 4, 4]) in (604, 605)
    assert again.infer(2, PROMPT[:400]) == 0


class Large(FakeContext):
    """A context whose cells take four times the bytes of its states."""

    def saved_size(self, number: int) -> int:
        """Return the size of four bytes a cell."""
        return 4 * super().saved_size(number)

    def save(self, number: int) -> memoryview:
        """Copy a sequence out."""
        return memoryview(bytes(super().save(number)) * 4)

    def restore(self, number: int, saved: memoryview) -> bool:
        """Copy a sequence in."""
        return super().restore(number, saved[: len(saved) // 4])

    def state_size(self, number: int) -> int:
        """Return the size of one byte a token."""
        return super().saved_size(number)


@pytest.mark.parametrize("memory", [Memory(states=True), Memory(windows=True)])
def test_after_a_restart_prompts_go_on_at_the_marks_of_a_file(memory: Memory) -> None:
    disk = Disk()
    life = Life(disk, Large(4, CONTEXT, batch_tokens=64, memory=memory), saved=100_000)
    life.infer(1, PROMPT)
    life.infer(2, [*PROMPT[:400], *[9] * 50])
    life.infer(3, [*PROMPT[:400], *[8] * 50])
    life.store_all()
    again = Life(disk, Large(4, CONTEXT, batch_tokens=64, memory=memory), saved=100_000)
    assert again.infer(1, PROMPT) == len(PROMPT) - 1, "before the last token"
    assert again.infer(2, [*PROMPT[:400], *[7] * 50]) == 400, "where prompts parted"
    assert again.infer(3, [*PROMPT[:300], *[7] * 50]) == 256, "the last of each 256 tokens"
    roomless = Life(disk, Large(4, CONTEXT, batch_tokens=64, memory=memory), saved=0)
    assert roomless.infer(1, [*PROMPT[:400], *[7] * 50]) == 400, "host memory has no room for any state"


@pytest.mark.parametrize("memory", [Memory(states=True), Memory(windows=True)])
def test_the_states_of_a_file_take_at_most_as_much_as_its_cells_and_two_of_them(memory: Memory) -> None:
    disk = Disk()
    life = Life(disk, FakeContext(4, CONTEXT, batch_tokens=64, memory=memory), saved=10**6)
    for end in range(0, 600, 4):
        life.infer(end + 1, [*PROMPT[:end], *[9] * 20])
    life.infer(1000, PROMPT)
    life.store_all()
    kept = max((contents for _, contents in disk.files.values()), key=lambda each: len(each.cells))
    assert kept.states
    assert sum(sorted(map(len, kept.states.values()))[:-2]) <= len(kept.cells)


def test_an_engine_that_ends_writes_large_conversations_that_grew_a_little() -> None:
    disk = Disk(limit=1 << 30)
    life = Life(disk, heavy())
    life.infer(0, PROMPT)
    assert life.store_all() == 1
    life.infer(1, longer := [*PROMPT, *solo(PROMPT, 5), *[5] * 30])
    assert life.store_all() == 0
    assert life.engine.cache.storing.store_next(1.0, ending=True)
    life.engine.turn(life.store.next_stored())
    assert Life(disk).infer(1, [*longer, *solo(longer, 5), 4]) >= len(longer)


def begun(*places: int) -> list[int]:
    """Return a prompt of 600 tokens that begins like no other."""
    return [*places, *PROMPT[len(places) :]]


def expect(life: Life, key: int, prompt: list[int]) -> None:
    life.engine.commands.expected.note(key, array("i", prompt).tobytes(), cells_of(MINE, NO_ADAPTERS))


def test_of_waiting_requests_the_ones_go_first_whose_cells_take_longer_to_read_than_their_prompts_to_end() -> None:
    life = Life(stored_by(begun(1)), FakeContext(2, CONTEXT, batch_tokens=64))
    ends = {50: [4] * 2, 51: [4] * 300}
    for key, end in ends.items():
        expect(life, key, [*begun(1), *end])
        expect(life, key + 10, [*begun(2), *end])
    life.infer(1, begun(1))
    life.infer(2, begun(2))
    assert life.engine.resident[-1] == [50, 60, 61], "300 tokens after 600 take longer than the file of these"


def worth_of(table: SequenceTable, disk: Disk, read_s: float) -> Worth:
    """Return what cells are worth beside a disk, where a token takes 1 ms to compute and 10 ms to save."""
    costs = MoveCosts(StepCosts(prefill={1: 0.001, 512: 0.512}), CONTEXT, 0.01 / SAVE_BYTE_S, lambda: 0.0)
    for _ in range(99):
        costs.was_read(1, read_s)
        costs.restoring(1, int)
    context, index = FakeContext(2, CONTEXT), Index(Memory())
    mover = CellMover(context, SavedCells(0, index), index, costs)
    StoredCells(FakeStore(disk), index, mover, costs)
    return Worth(table, index, costs, Expected(), mover)


@pytest.mark.parametrize(("read_s", "part"), [(0.0001, 0.1), (0.0005, 0.5), (0.005, 1.0)])
def test_cells_that_a_file_has_are_worth_the_time_to_read_them_where_that_is_less(read_s: float, part: float) -> None:
    table = SequenceTable(2, CONTEXT)
    for number, sequence in enumerate(table.sequences, 1):
        sequence.start(begun(number), table.next_order())
        sequence.commit(600)
        sequence.retire(prefix_of(begun(number), cells_of(MINE, NO_ADAPTERS)))
    worth = worth_of(table, stored_by(begun(1)), read_s)
    filed, other = (worth.lost(sequence) for sequence in table.sequences)
    assert filed / worth.likely(table.sequences[0]) == pytest.approx(part * 0.6, rel=0.01)
    assert other / worth.likely(table.sequences[1]) == pytest.approx(0.6, rel=0.01)


SHARED = [[1 + (place * step) % 26 for place in range(400)] for step in (3, 5)]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 1), st.integers(0, 400), st.sampled_from([MINE, MINE, "1001:"])),
        st.tuples(st.just("run"), st.integers(0, 1), st.integers(0, 9), st.just(MINE)),
        st.tuples(st.sampled_from(["turn", "read", "store", "lose", "halt", "park", "resume", "restart"])),
    ),
    min_size=5,
    max_size=40,
)


class Walk:
    """Engines one after the other on one disk, moved by events in any order."""

    def __init__(self, memory: Memory) -> None:
        self.disk = stored_by(*SHARED)
        self.memory = memory
        self.start()
        self.prompts: dict[int, list[int]] = {}  # of the requests of this life that were not halted
        self.parked: list[int] = []
        self.key = 0

    def run(self, which: int, length: int, namespace: str) -> None:
        """Start a request, if a sequence is idle."""
        if not self.life.engine.table.idle:
            return
        self.key += 1
        self.prompts[self.key] = [*SHARED[which], *[1 + (self.key + place) % 26 for place in range(length)]]
        self.life.engine.turn(run_command(self.key, self.prompts[self.key], 5, namespace=namespace))

    def apply(self, event: str) -> None:
        """Move on by one event, where it is possible now."""
        life, engine = self.life, self.life.engine
        running = list(engine.running.seats.sequences)
        if event == "turn":
            engine.turn()
        elif event == "read" and life.store.reads:
            engine.turn(life.store.next_read())
        elif event == "store" and not engine.table.busy:
            if life.store.writes:
                engine.turn(life.store.next_stored())
            else:
                engine.cache.storing.store_next(1.0)
        elif event == "lose" and self.disk.files:
            self.disk.files.pop(next(iter(self.disk.files)))
        elif event == "halt" and running:
            engine.halt(running[0])
            self.prompts.pop(running[0])
        elif event == "park" and running:
            engine.park(running[-1])
            self.parked.append(running[-1])
        elif event == "resume" and self.parked and engine.table.idle:
            engine.resume(self.parked.pop())
        elif event == "restart":
            self.finish()
            self.start()

    def start(self) -> None:
        """Start an engine."""
        self.life = Life(self.disk, FakeContext(4, CONTEXT, batch_tokens=64, memory=self.memory), saved=20_000)

    def finish(self) -> None:
        """Let all requests end, and compare their answers with lone ones."""
        life, engine = self.life, self.life.engine
        while engine.running.seats.sequences or self.parked:
            while life.store.reads:
                engine.turn(life.store.next_read())
            engine.finish()
            if self.parked:
                engine.resume(self.parked.pop())
        for key, prompt in self.prompts.items():
            assert engine.tokens(key) == solo(prompt, 5)
        self.prompts.clear()
        assert life.store.free


@settings(max_examples=40)
@given(events=EVENTS, memory=st.sampled_from([Memory(), Memory(states=True), Memory(windows=True)]))
def test_answers_are_those_of_lone_requests_whatever_is_stored_read_and_lost_meanwhile(
    events: list[tuple[str] | tuple[str, int, int, str]], memory: Memory
) -> None:
    walk = Walk(memory)
    for event in events:
        if len(event) == 4:
            walk.run(*event[1:])
        else:
            walk.apply(event[0])
    walk.finish()
