"""Random walks of commands and failing decodes over the ledger, against the answers of each prompt alone."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.frames import Halt, Park, Resume, Run
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import Sequence
from tests.engine.fakes import END_TOKEN, FakeContext, FakeEngine, run_command, solo

SEQUENCES = 6
CONTEXT = 80
QUIET = st.just(())
RUN = st.tuples(st.just("run"), st.integers(1, 72), st.integers(1, 12))
HALT = st.tuples(st.just("halt"), st.integers(0, 2**16), st.booleans())
PARK = st.tuples(st.sampled_from(["park", "resume"]), st.integers(0, 2**16), st.just(0))
TURNS = st.lists(
    st.one_of(QUIET, st.lists(RUN | RUN | HALT | PARK | PARK, max_size=4).map(tuple)), min_size=4, max_size=30
)
SHARED = [1 + place * 7 % 26 for place in range(CONTEXT)]
NAMESPACES = ("one", "one", "two", None)
TICKS = st.sampled_from([0.0001, 0.005, 0.05])
Event = tuple[str, int, int]
CELLS = Memory()
MEMORIES = (
    CELLS,
    Memory(states=True),
    Memory(states=True, rollback=3),
    Memory(windows=True),
    Memory(states=True, windows=True),
)


class Walk:
    """An engine, its requests, and the invariants after every turn."""

    def __init__(
        self,
        *,
        memory: Memory = CELLS,
        tick: float,
        codes: dict[int, int] | None = None,
        saved_bytes: int = 1000,
        speculates: bool = False,
    ) -> None:
        context = FakeContext(SEQUENCES, CONTEXT, batch_tokens=24, codes=codes, memory=memory)
        self.engine = FakeEngine(context, tick=tick, saved_bytes=saved_bytes, speculates=speculates)
        self.asked: dict[int, tuple[list[int], int]] = {}
        self.halted: set[int] = set()
        # The requests with a lease, and the parked ones.
        self.active: list[int] = []
        self.parked: list[int] = []
        # Requests that waited for prompts of others through the last turn, and requests with a token of a decode.
        self.passed_over: set[int] = set()
        self.went_on: set[int] = set()

    def turn(self, events: tuple[Event, ...]) -> None:
        """Apply events, take a step and check everything."""
        decoders = [key for key in self.active if self.decodes(key)]
        commands = [command for event in events if (command := self.command(*event)) is not None]
        moved = {command.key for command in commands}
        numbers = {key: self.engine.number_of(key) for key in decoders if key not in moved}
        had = {key: len(self.engine.tokens(key)) for key in numbers}
        batches = len(self.engine.context.batches)
        self.engine.turn(*commands)
        rows = [
            row
            for each in self.engine.context.batches[batches:]
            for row in zip(each.numbers, each.outputs, strict=True)
        ]
        decoded = {number for number, output in rows if output}
        missing = {key for key, number in numbers.items() if number not in decoded}
        assert len(missing) in (0, len(numbers)), "some decoders have a row and some have none"
        if again := missing & self.passed_over:
            assert not again & self.went_on
            assert decoded, "a request with a token waited though no other had its first token"
        self.passed_over = missing
        self.went_on |= {key for key in numbers if len(self.engine.tokens(key)) > had[key]}
        self.active = [key for key in self.active if not self.engine.ends(key)]
        self.check()

    def decodes(self, key: int) -> bool:
        """A request needs a row in the next step."""
        number = self.engine.number_of(key)
        return number is not None and self.engine.table.sequences[number].next_token is not None

    def command(self, kind: str, number: int, flag: int) -> Run | Park | Resume | Halt | None:
        """Return the command of an event, if it is possible now."""
        room = len(self.active) < SEQUENCES
        if kind == "run" and room:
            return self.run(number, flag)
        if kind == "park" and self.active:
            key = self.active.pop(number % len(self.active))
            self.parked.append(key)
            return Park(key)
        if kind == "resume" and self.parked and room:
            key = self.parked.pop(number % len(self.parked))
            self.active.append(key)
            # Its cells may have to be computed again, as a prompt is.
            self.went_on.discard(key)
            return Resume(key)
        if kind == "halt" and (live := self.active + self.parked):
            key = live[number % len(live)]
            (self.active if key in self.active else self.parked).remove(key)
            self.halted.add(key)
            return Halt(key, bool(flag))
        return None

    def run(self, length: int, max_tokens: int) -> Run:
        """Return the start of a new request that fits."""
        key = len(self.asked) + 1
        own = [1 + (key * 5 + place * 3) % 26 for place in range(min(length, CONTEXT - max_tokens))]
        # Some have a common prefix of any length; requests use two namespaces, or no cache.
        begin = SHARED[: min(length * key % 53, len(own))] if key % 3 else []
        prompt = begin + own[len(begin) :]
        self.asked[key] = (prompt, max_tokens)
        self.active.append(key)
        return run_command(key, prompt, max_tokens, namespace=NAMESPACES[key * length % len(NAMESPACES)])

    def check(self) -> None:
        """Check one end a request, its tokens, and the memory of the context."""
        for key, (prompt, max_tokens) in self.asked.items():
            tokens, ends = self.engine.tokens(key), self.engine.ends(key)
            assert len(ends) <= 1
            assert tokens == solo(prompt, max_tokens)[: len(tokens)]
            assert not ends or ends[0].usage.completion_tokens == len(tokens)
            assert not ends or key in self.halted or ends[0].fault or ends[0].reason is not None
        for sequence in self.engine.table.sequences:
            self.check_memory(sequence)
        assert len(self.engine.samplers.alive) == len(self.active) + len(self.parked)
        assert self.engine.saved.bytes <= 1000

    def check_memory(self, sequence: Sequence) -> None:
        """Check that the cells of a sequence are its committed prompt and answer."""
        assert self.engine.context.last_position(sequence.number) == sequence.cells - 1
        prompt = list(sequence.prompt)
        kept = sequence.prefix.tokens.tolist() if sequence.prefix is not None else []
        history = prompt + solo(prompt, CONTEXT) if prompt else kept
        assert self.engine.context.cells[sequence.number] == history[: sequence.cells]

    def finish(self) -> None:
        """Let all requests run to their end."""
        for _ in range(2000):
            if not self.engine.table.busy and not self.parked:
                break
            self.turn((("resume", 0, 0),))
        assert not self.active
        assert not self.engine.saved.pinned


@settings(max_examples=150)
@given(TURNS, st.sampled_from(MEMORIES), TICKS, st.sampled_from([0, 60, 1000]))
def test_every_request_ends_once_with_the_answer_it_has_alone(
    turns: list[tuple[Event, ...]], memory: Memory, tick: float, saved_bytes: int
) -> None:
    walk = Walk(memory=memory, tick=tick, saved_bytes=saved_bytes)
    for events in turns:
        walk.turn(events)
    walk.finish()
    for key, (prompt, max_tokens) in walk.asked.items():
        (end,) = walk.engine.ends(key)
        assert not end.fault
        if key not in walk.halted:
            answer = solo(prompt, max_tokens)
            assert walk.engine.tokens(key) == answer
            assert end.reason == ("stop" if answer[-1] == END_TOKEN else "length")


@settings(max_examples=150)
@given(TURNS, TICKS, st.dictionaries(st.integers(0, 40), st.sampled_from([2, -3]), min_size=1, max_size=8))
def test_a_decode_done_in_part_fails_only_what_it_did(
    turns: list[tuple[Event, ...]], tick: float, codes: dict[int, int]
) -> None:
    walk = Walk(tick=tick, codes=codes)
    for events in turns:
        walk.turn(events)
    walk.finish()
    for key, (prompt, max_tokens) in walk.asked.items():
        (end,) = walk.engine.ends(key)
        if not end.fault and key not in walk.halted:
            assert walk.engine.tokens(key) == solo(prompt, max_tokens)


@settings(max_examples=50)
@given(TURNS, TICKS, st.integers(1, 40), st.integers(0, 20))
def test_a_halted_request_is_as_if_it_had_never_been(
    turns: list[tuple[Event, ...]], tick: float, length: int, steps: int
) -> None:
    walk = Walk(tick=tick)
    for events in turns:
        walk.turn(events)
    if len(walk.active) == SEQUENCES:
        return
    idle = {sequence.number for sequence in walk.engine.table.idle}
    walk.turn((("run", length, 12),))
    key = len(walk.asked)
    for _ in range(steps):
        walk.turn(())
    if key in walk.active:
        walk.turn((("halt", walk.active.index(key), 0),))
    assert idle <= {sequence.number for sequence in walk.engine.table.idle}


def long_walk(seed: int, turns: int) -> None:
    """Walk through a busy engine, longer and denser than the walks above."""
    random = Random(seed)
    codes = {random.randrange(300): random.choice([2, -3]) for _ in range(random.choice([0, 0, 12]))}
    walk = Walk(
        memory=random.choice(MEMORIES),
        tick=random.choice([0.0001, 0.005, 0.05]),
        codes=codes,
        saved_bytes=random.choice([0, 60, 1000]),
        speculates=random.random() < 0.5,
    )
    kinds = ["run"] * 5 + ["park", "resume", "halt"]
    for _ in range(turns):
        events = [(random.choice(kinds), random.randrange(1, 72), random.randrange(1, 12)) for _ in range(3)]
        walk.turn(tuple(events[: random.randrange(4)]))
    walk.finish()
    for key, (prompt, max_tokens) in walk.asked.items():
        (end,) = walk.engine.ends(key)
        assert not end.fault or codes
        if not end.fault and key not in walk.halted:
            assert walk.engine.tokens(key) == solo(prompt, max_tokens)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 30))])
def test_everything_holds_on_a_long_walk(seed: int) -> None:
    long_walk(seed, turns=60)
