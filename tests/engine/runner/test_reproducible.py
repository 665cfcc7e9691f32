"""Reproducible requests on the ledger: each cell was computed in the piece in which it is computed alone."""

from random import Random

import pytest

from car_base.ipc.frames import Halt, Park, Resume, Run, SetThreads
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import GRID_TOKENS
from tests.engine.fakes import FakeContext, FakeEngine, run_command, solo

SEQUENCES = 5
CONTEXT = 400
CELLS, STATES, WINDOWS = Memory(), Memory(states=True), Memory(windows=True)
SHARED = [1 + place * 7 % 26 for place in range(CONTEXT)]
# The position of a decode's first row of a sequence, and the rows of all sequences in it.
Piece = tuple[int, int]


class Pieces(FakeContext):
    """A ledger that also knows in which piece each cell was computed, and from where it was restored."""

    def __init__(self, sequences: int = SEQUENCES, memory: Memory = CELLS) -> None:
        super().__init__(sequences, CONTEXT, batch_tokens=128, memory=memory)
        self.pieces: list[list[Piece]] = [[] for _ in range(sequences)]
        self._saved: dict[int, list[Piece]] = {}
        self.windows: set[int] = set()  # sequences whose windows were restored, so that they lie elsewhere

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        starts = dict(reversed(list(zip(numbers, positions, strict=True))))
        for number, position in zip(numbers, positions, strict=True):
            self.pieces[number][position:] = [(starts[number], len(tokens))]
        return super().decode(tokens, positions, numbers, outputs)

    def cut(self, number: int, start: int) -> None:
        super().cut(number, start)
        del self.pieces[number][start:]
        if start == 0:
            self.windows.discard(number)

    def copy(self, source: int, target: int) -> None:
        super().copy(source, target)
        self.pieces[target] = list(self.pieces[source])

    def save(self, number: int) -> memoryview:
        saved = super().save(number)
        self._saved[id(saved)] = list(self.pieces[number])
        return saved

    def restore(self, number: int, saved: memoryview) -> bool:
        self.pieces[number] = list(self._saved[id(saved)])
        if self.memory.windows:
            self.windows.add(number)
        return super().restore(number, saved)

    def restore_state(self, number: int, state: memoryview, tokens: int) -> bool:
        del self.pieces[number][tokens:]
        if self.memory.windows:
            self.windows.add(number)
        return super().restore_state(number, state, tokens)


def alone(prompt_tokens: int, cells: int) -> list[Piece]:
    """Return the pieces of a request that runs alone."""
    grid = [
        (start, min(GRID_TOKENS, prompt_tokens - start))
        for place in range(prompt_tokens)
        for start in [place - place % GRID_TOKENS]
    ]
    return [*grid, *((position, 1) for position in range(prompt_tokens, cells))][:cells]


def check(engine: FakeEngine, context: Pieces, prompts: dict[int, list[int]]) -> None:
    """Check the cells of each reproducible request, and that no window of them was restored."""
    for key, prompt in prompts.items():
        sequence = engine.running.seats.sequences.get(key)
        if sequence is not None and sequence.grid is not None:
            assert context.pieces[sequence.number][: sequence.cells] == alone(len(prompt), sequence.cells)
            assert sequence.number not in context.windows


@pytest.mark.parametrize("memory", [CELLS, STATES, WINDOWS, Memory(states=True, windows=True)])
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 40))])
def test_every_cell_is_computed_as_it_is_alone_on_any_walk(seed: int, memory: Memory) -> None:
    random = Random(seed)
    context = Pieces(memory=memory)
    engine = FakeEngine(
        context,
        tick=random.choice([0.0001, 0.005, 0.05]),
        saved_bytes=random.choice([0, 500, 100_000]),
        speculates=True,
    )
    prompts: dict[int, list[int]] = {}
    active: list[int] = []
    parked: list[int] = []
    halted: set[int] = set()
    reproducible = 0
    for _ in range(150):
        active = [key for key in active if not engine.ends(key)]
        commands: list[Run | Park | Resume | Halt] = []
        match random.choice(["run", "run", "park", "resume", "resume", "halt", "", "", ""]):
            case "run" if len(active) < SEQUENCES:
                key, common = len(prompts), random.randrange(300)
                own = [1 + (key * 5 + place * 3) % 26 for place in range(random.randrange(1, 60))]
                prompts[key] = SHARED[:common] + own
                exact = random.random() < 0.6
                reproducible += exact
                commands.append(run_command(key, prompts[key], 12, namespace="me", reproducible=exact))
                active.append(key)
            case "park" if active:
                parked.append(active.pop(random.randrange(len(active))))
                commands.append(Park(parked[-1]))
            case "resume" if parked and len(active) < SEQUENCES:
                active.append(parked.pop(0))
                commands.append(Resume(active[-1]))
            case "halt" if active and random.random() < 0.3:
                commands.append(Halt(active.pop(), deadline=False))
                halted.add(commands[-1].key)
        engine.turn(*commands)
        check(engine, context, prompts)
    while engine.table.busy or parked:
        engine.turn(*([Resume(parked.pop())] if parked and engine.table.idle else []))
        check(engine, context, prompts)
    for key in prompts.keys() - halted:
        assert engine.tokens(key) == solo(prompts[key], 12)
    assert reproducible
    assert engine.loop.counters["cache_hits"] > 0 or not memory.cuts_anywhere


def test_whole_pieces_are_cached_and_the_rest_is_computed_again() -> None:
    context = Pieces()
    engine = FakeEngine(context)
    for key in range(2):
        engine.turn(run_command(key, SHARED[:200], 5, namespace="me", reproducible=True))
        engine.finish()
    assert [engine.ends(key)[0].usage.cached_tokens for key in range(2)] == [0, 192]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_cells_of_other_requests_are_not_reused(first: bool, second: bool) -> None:
    engine = FakeEngine(Pieces())
    for key, exact in enumerate((first, second)):
        engine.turn(run_command(key, SHARED[:200], 5, namespace="me", reproducible=exact))
        engine.finish()
    assert engine.ends(1)[0].usage.cached_tokens == 0


def test_a_parked_request_whose_cells_were_dropped_computes_its_answer_token_by_token() -> None:
    context = Pieces()
    engine = FakeEngine(context, saved_bytes=0)
    engine.turn(run_command(1, SHARED[:100], 12, reproducible=True))
    for _ in range(8):
        engine.turn()
    done = len(engine.tokens(1))
    engine.park(1)
    engine.resume(1)
    batches = len(context.batches)
    engine.finish()
    assert engine.tokens(1) == solo(SHARED[:100], 12)
    again = [len(batch.tokens) for batch in context.batches[batches - 1 :]]
    assert 1 < done < 12
    assert again == [64, 36, *[1] * 11]


def test_threads_stay_as_loaded_while_a_reproducible_request_runs() -> None:
    engine = FakeEngine(Pieces())
    threads: list[int] = []
    loaded = engine.costs.threads
    engine.threads.add(threads.append)
    engine.turn(SetThreads(loaded + 1))
    engine.turn(run_command(1, [5] * 30, 30, reproducible=True))
    engine.turn(SetThreads(loaded + 2))
    engine.turn()
    assert threads[-1] == engine.costs.threads == loaded
    engine.halt(1)
    engine.turn(run_command(2, [5] * 30, 3))
    assert threads[-1] == engine.costs.threads == loaded + 2


def test_an_engine_with_other_results_refuses_reproducible_requests_alone() -> None:
    engine = FakeEngine(Pieces(), repeats=False)
    engine.turn(run_command(1, [5] * 30, 3, reproducible=True), run_command(2, [5] * 30, 3))
    engine.finish()
    assert [engine.ends(key)[0].fault for key in (1, 2)] == ["unrepeatable", None]
