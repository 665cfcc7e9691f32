"""The loop: commands in, frames out, one turn at a time."""

import pytest

from car_base.ipc.frames import FromEngine, Resume, StepDone, Yield
from car_base.ipc.ranges import MAX_UPDATES
from car_engine.output.reader import OutputReader, Released
from car_engine.runner import generation
from tests.engine.batching.plans import costs_of
from tests.engine.fakes import END_TOKEN, PIECES, FakeContext, FakeEngine, run_command, solo
from tools.trace.profile import profiled

LENGTH = 8
CANDIDATES = [[3 + number, 4, 5, 6][: 1 + number % 4] for number in range(20)]
# Prompts with long answers.
PROMPTS = [prompt for prompt in CANDIDATES if END_TOKEN not in solo(prompt, 60)][:4]


def text_of(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


def ending_prompt() -> list[int]:
    """Return a prompt whose answer ends by itself within 60 tokens."""
    return next([token] for token in range(1, 27) if solo([token], 60)[-1] == END_TOKEN)


def test_a_request_runs_to_its_length() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], LENGTH))
    engine.finish()
    assert engine.tokens(1) == solo(PROMPTS[0], LENGTH)
    assert engine.text(1) == text_of(solo(PROMPTS[0], LENGTH))
    (end,) = engine.ends(1)
    assert (end.reason, end.fault) == ("length", None)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(PROMPTS[0]), LENGTH)


def test_a_request_ends_at_its_end_token() -> None:
    prompt = ending_prompt()
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, prompt, 60))
    engine.finish()
    assert engine.tokens(1) == solo(prompt, 60)
    assert engine.ends(1)[0].reason == "stop"


def test_a_request_ends_before_its_stop_string() -> None:
    answer = text_of(solo(PROMPTS[0], LENGTH))
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], LENGTH, stop=[answer[3:5]]))
    engine.finish()
    assert engine.text(1) == answer[: answer.index(answer[3:5])]
    assert (engine.ends(1)[0].reason, engine.ends(1)[0].stop) == ("stop", answer[3:5])


def test_requests_beside_each_other_have_the_answers_they_have_alone() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(*(run_command(key, prompt, LENGTH) for key, prompt in enumerate(PROMPTS)))
    engine.finish()
    assert [engine.tokens(key) for key in range(4)] == [solo(prompt, LENGTH) for prompt in PROMPTS]


class BrokenReader(OutputReader):
    """A reader that fails at the third piece, or at the end of the answer."""

    def __init__(self, at: str) -> None:
        super().__init__([], None, None)
        self._at = at
        self._pieces = 0

    def push(self, piece: bytes) -> Released:
        self._pieces += 1
        if self._at == "a piece" and self._pieces == 3:
            raise RecursionError("canary-text")
        return super().push(piece)

    def finish(self, *, cut: bool = False) -> Released:
        if self._at == "the end":
            raise RecursionError("canary-text")
        return super().finish(cut=cut)


@pytest.mark.parametrize(("at", "tokens"), [("a piece", 3), ("the end", LENGTH)])
def test_an_answer_that_cannot_be_read_ends_alone(monkeypatch: pytest.MonkeyPatch, at: str, tokens: int) -> None:
    reader_of = generation.reader_of
    monkeypatch.setattr(generation, "reader_of", lambda *given: BrokenReader(at) if given[1] else reader_of(*given))
    engine = FakeEngine(FakeContext(2))
    engine.turn(run_command(1, PROMPTS[0], LENGTH, stop=["broken"]), run_command(2, PROMPTS[1], LENGTH))
    engine.finish()
    (end,) = engine.ends(1)
    assert (end.reason, end.fault, end.usage.completion_tokens) == (None, "reader", tokens)
    assert end.defect is not None
    assert end.defect.startswith("RecursionError at tests.engine.runner.test_loop")
    assert (engine.text(2), engine.ends(2)[0].reason) == (text_of(solo(PROMPTS[1], LENGTH)), "length")
    engine.turn(run_command(3, PROMPTS[2], LENGTH), run_command(4, PROMPTS[3], LENGTH))
    engine.finish()
    assert [engine.ends(key)[0].reason for key in (3, 4)] == ["length", "length"]


@pytest.mark.parametrize("parked", [False, True])
def test_an_answer_that_cannot_be_read_ends_alone_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, *, parked: bool
) -> None:
    monkeypatch.setattr(generation, "reader_of", lambda *_: BrokenReader("the end"))
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], LENGTH))
    engine.turn()
    if parked:
        engine.park(1)
    engine.halt(1, deadline=True)
    assert [(end.reason, end.fault) for end in engine.ends(1)] == [(None, "reader")]


def first_chunk_beside_a_stream(moved_s: float) -> int:
    """Return the rows of the first chunk of a long prompt, before which its start took so long."""
    context = FakeContext(2, 1024, batch_tokens=512)
    engine = FakeEngine(context, costs=costs_of(prefill=0.001))
    engine.turn(run_command(1, PROMPTS[0], 60))
    engine.turn()
    engine.clock.now += moved_s
    engine.turn(run_command(2, [1 + place % 20 for place in range(600)], 5))
    return len(context.batches[-1].tokens)


def test_the_time_in_which_cells_moved_before_a_prompt_is_taken_from_the_prompt() -> None:
    assert [first_chunk_beside_a_stream(moved_s) for moved_s in (0.0, 0.03)] == [32, 16]


def test_one_sequence_serves_request_after_request() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    for key, prompt in enumerate(PROMPTS):
        engine.turn(run_command(key, prompt, LENGTH))
        engine.finish()
    assert [engine.tokens(key) for key in range(4)] == [solo(prompt, LENGTH) for prompt in PROMPTS]
    assert engine.context.cells == [[]]


def test_one_request_more_than_declared_ends_alone() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    engine.turn(run_command(1, PROMPTS[0]), run_command(2, PROMPTS[1]))
    assert [end.fault for end in engine.ends(2)] == ["lease"]
    engine.finish()
    assert engine.tokens(1) == solo(PROMPTS[0], LENGTH)


def test_one_that_was_parked_and_finds_no_sequence_ends_alone() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    engine.turn(run_command(1, PROMPTS[0]))
    engine.park(1)
    engine.turn(run_command(2, PROMPTS[1], LENGTH), Resume(1))
    assert [end.fault for end in engine.ends(1)] == ["lease"]
    engine.finish()
    assert engine.tokens(2) == solo(PROMPTS[1], LENGTH)
    assert not engine.samplers.alive


def test_a_halted_request_ends_without_a_reason_and_leaves_nothing() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], 50))
    engine.turn()
    engine.halt(1)
    assert [(end.reason, end.fault) for end in engine.ends(1)] == [(None, None)]
    assert not engine.table.busy
    assert not engine.samplers.alive
    assert engine.context.cells == [[], [], [], []]


def test_a_request_that_is_halted_in_the_turn_of_its_start_never_decodes() -> None:
    engine = FakeEngine(FakeContext())
    run = run_command(1, PROMPTS[0])
    engine.loop.turn([run])
    engine.halt(1)
    batches = len(engine.context.batches)
    engine.turn()
    assert len(engine.context.batches) == batches


def test_a_deadline_gives_what_there_is_with_its_reason() -> None:
    engine = FakeEngine(FakeContext())
    answer = text_of(solo(PROMPTS[0], LENGTH))
    engine.turn(run_command(1, PROMPTS[0], 50, stop=[answer[1] + "?"]))
    engine.turn()
    assert engine.text(1) == answer[:1], "a possible stop string is withheld"
    engine.halt(1, deadline=True)
    assert engine.text(1) == answer[:2]
    assert engine.ends(1)[0].reason == "deadline"


def test_halting_what_is_unknown_or_done_changes_nothing() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], 1))
    engine.halt(1)
    engine.halt(99)
    assert len(engine.ends(1)) == 1
    assert 99 not in engine.updates


def test_halting_one_request_leaves_the_others_alone() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(*(run_command(key, prompt, LENGTH) for key, prompt in enumerate(PROMPTS)))
    engine.turn()
    engine.halt(1)
    engine.finish()
    for key in (0, 2, 3):
        assert engine.tokens(key) == solo(PROMPTS[key], LENGTH)


def test_a_long_prompt_reports_its_progress() -> None:
    engine = FakeEngine(FakeContext(batch_tokens=16))
    prompt = [1 + number % 26 for number in range(40)]
    engine.turn(run_command(1, prompt, 2))
    engine.finish()
    assert [update.prompt_done for update in engine.updates[1]] == [16, 32, 40, 40]
    assert engine.tokens(1) == solo(prompt, 2)


def test_a_prompt_that_yields_waits_for_the_answer_beside_it_and_has_the_answer_that_it_has_alone() -> None:
    engine = FakeEngine(FakeContext(sequences=2, batch_tokens=4))
    engine.turn(run_command(1, PROMPTS[0], LENGTH))
    engine.turn(run_command(2, PROMPTS[1] * 4, LENGTH), Yield([2]))
    waiting = engine.running.seats.sequences[2]
    while not engine.ends(1):
        assert waiting.cells == 0
        engine.turn()
    engine.finish()
    assert (engine.tokens(1), engine.tokens(2)) == (solo(PROMPTS[0], LENGTH), solo(PROMPTS[1] * 4, LENGTH))


def test_a_prompt_that_yields_is_read_for_those_that_wait_for_it() -> None:
    engine = FakeEngine(FakeContext(sequences=4, batch_tokens=16))
    common = [1 + number % 20 for number in range(40)]
    engine.turn(run_command(1, PROMPTS[0], 60))
    engine.turn()
    engine.turn(*(run_command(key, [*common, key], 2, namespace="me") for key in (2, 3)), Yield([2, 3]))
    leader, follower = (engine.running.seats.sequences[key] for key in (2, 3))
    assert follower.leader is not None
    for _ in range(3):
        engine.turn()
    assert leader.cells == 0
    engine.turn(Yield([2]))
    while not engine.ends(3):
        assert not engine.ends(1)
        engine.turn()
    assert engine.tokens(3) == solo([*common, 3], 2)


def test_a_constraint_that_cannot_be_built_any_more_ends_its_request_as_one_that_fails_later() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], 3, constraint="?"), run_command(2, PROMPTS[3], 3))
    engine.finish()
    assert [(end.reason, end.fault, end.usage.prompt_tokens) for end in engine.ends(1)] == [
        (None, "constraint", len(PROMPTS[0]))
    ]
    assert engine.tokens(2) == solo(PROMPTS[3], 3)


def test_a_request_that_fills_its_sequence_to_the_last_cell_is_served() -> None:
    engine = FakeEngine(FakeContext(context_tokens=16))
    prompt = [3] * 8
    expected = solo(prompt, 8)
    engine.turn(run_command(1, prompt, 8))
    engine.finish()
    assert engine.tokens(1) == expected


def test_a_prompt_that_is_longer_than_its_sequence_fails_alone() -> None:
    engine = FakeEngine(FakeContext(context_tokens=40, batch_tokens=32))
    engine.turn(run_command(1, [3] * 50, 3), run_command(2, PROMPTS[3], 3))
    engine.finish()
    assert [(end.reason, end.fault) for end in engine.ends(1)] == [(None, "context")]
    assert engine.tokens(2) == solo(PROMPTS[3], 3)


def test_an_answer_ends_by_length_where_its_sequence_is_full() -> None:
    engine = FakeEngine(FakeContext(context_tokens=4))
    engine.turn(run_command(1, PROMPTS[0], 50), run_command(2, PROMPTS[3], 3))
    engine.finish()
    (end,) = engine.ends(1)
    assert (end.reason, end.usage.prompt_tokens + end.usage.completion_tokens) == ("length", 4)
    assert engine.tokens(2) == solo(PROMPTS[3], 3)


def test_tokens_come_only_if_the_request_has_that_option() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], return_tokens=False))
    engine.finish()
    assert all(update.extra is None for update in engine.updates[1])
    assert sum(update.sampled for update in engine.updates[1]) == LENGTH


def test_the_progress_counts_steps_and_shows_none_between_them() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(run_command(1, PROMPTS[0], 3))
    engine.finish()
    assert engine.loop.progress.step == 3
    assert engine.loop.progress.step_started is None
    assert engine.loop.counters["decode_tokens"] == 2


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        ("table", "<SequenceTable idle=3 decode=1 started=3>"),
        ("running", "<RunningRequests running=1 tokens=3 <ParkingLot parked=1 saved=1>>"),
        ("saved", "<SavedCells bytes=4/1000 pinned=4 kept=0>"),
        (
            "cache",
            "<PrefixCache cache_hits=0 cached_tokens=0 evicted_sequences=0 stored_hits=0 stored_bytes=0 saved_bytes=4>",
        ),
    ],
)
def test_the_owners_of_state_show_their_counts(owner: str, text: str) -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(*(run_command(key, [3 + key, 4, 5]) for key in range(3)))
    engine.turn()
    engine.park(2)
    assert repr(getattr(engine, owner)) == text
    assert repr(engine.table) in repr(engine.loop)


@pytest.mark.parametrize("sequences", [3, 16])
def test_a_decode_step_of_three_streams_takes_at_most_a_hundred_calls(sequences: int) -> None:
    engine = FakeEngine(FakeContext(sequences))
    engine.turn(*(run_command(key, PROMPTS[key], 40) for key in range(3)))
    for _ in range(3):
        engine.turn()
    with profiled() as step:
        engine.loop.turn(engine.loop.next_commands())
    assert step.calls <= 100


class CountingEngine(FakeEngine):
    """An engine that counts the updates of each frame of a step."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        super().__init__(FakeContext(1, 8))

    def _receive(self, message: FromEngine) -> None:
        if isinstance(message, StepDone):
            self.counts.append(len(message.updates))
        super()._receive(message)


def test_a_turn_with_more_updates_than_a_frame_may_have_is_sent_in_several() -> None:
    engine = CountingEngine()
    # Each ends at once, because its prompt is longer than the context.
    engine.turn(*(run_command(key, [3] * 8, LENGTH) for key in range(MAX_UPDATES + 5)))
    assert engine.counts == [MAX_UPDATES, 5]
    assert all(len(engine.ends(key)) == 1 for key in range(MAX_UPDATES + 5))
