"""Cells that are reused on the real engine, also with sliding windows: answers are what their prompts have alone."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from car_base.ipc.frames import Halt, Park, Resume
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel
from car_engine.llama.tokens import Vocabulary
from tests.engine.llama.conftest import loaded
from tests.engine.llama.test_walk import RealEngine, run_command
from tools.random_models.sliding import WINDOW, generate_sliding

CONTEXT = 512
LONG = [50 + place * 7 % 90 for place in range(300)]
# It begins as the long one does, and ends far before what a window leaves of that.
SHORT = [*LONG[:150], 60, 61, 62]
OTHERS = ([70 + place * 11 % 60 for place in range(350)], [55 + place * 13 % 60 for place in range(350)])

MakeEngine = Callable[..., RealEngine]


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A model of which every other layer looks no further than a window."""
    path = tmp_path_factory.mktemp("models") / "sliding.gguf"
    generate_sliding(path)
    with loaded(path) as model:
        yield model


@pytest.fixture
def make_engine(sliding: LlamaModel) -> Iterator[MakeEngine]:
    """Build engines of so many sequences, of so many tokens each."""
    with ExitStack() as stack:

        def make(sequences: int, context_tokens: int = CONTEXT) -> RealEngine:
            context = LlamaContext(sliding, sequences=sequences, context_tokens=context_tokens, threads=1)
            stack.enter_context(closing(context))
            return RealEngine(context, Vocabulary(sliding), tick=0.001, saved_bytes=10**9)

        yield make


def ask(engine: RealEngine, key: int, prompt: list[int], namespace: str | None = "me") -> None:
    """Run one request to its end."""
    engine.turn(run_command(key, prompt, namespace))
    engine.finish()


@pytest.fixture
def alone(make_engine: MakeEngine) -> list[int]:
    """The answer to the short prompt without reuse."""
    engine = make_engine(1)
    ask(engine, 0, SHORT, None)
    return engine.tokens[0]


def test_what_a_window_left_of_saved_cells_is_not_taken_for_all_of_them(
    make_engine: MakeEngine, alone: list[int]
) -> None:
    engine = make_engine(2)
    for key, prompt in enumerate((LONG, *OTHERS, SHORT)):
        ask(engine, key, prompt)
    assert engine.tokens[3] == alone
    assert engine.ends[3].usage.cached_tokens == 0


def test_saved_cells_go_on_at_their_end(make_engine: MakeEngine) -> None:
    engine = make_engine(2)
    for key, prompt in enumerate((LONG, *OTHERS)):
        ask(engine, key, prompt)
    answered = [*LONG, *engine.tokens[0]]
    ask(engine, 3, [*answered, 60, 61])
    assert engine.ends[3].usage.cached_tokens >= len(answered) - 1
    ask(engine, 4, [*answered, 60, 61], None)
    assert engine.tokens[3] == engine.tokens[4]


@pytest.mark.parametrize("parked", [False, True])
def test_a_follower_of_a_request_that_was_parked_computes_what_that_has_no_more(
    make_engine: MakeEngine, alone: list[int], *, parked: bool
) -> None:
    engine = make_engine(3)
    engine.turn(run_command(0, LONG, "me"))
    while not engine.tokens.get(0):
        engine.turn()
    if parked:
        engine.turn(Park(0))
        engine.turn(Resume(0))
    engine.turn(run_command(1, SHORT, "me"))
    engine.finish()
    assert engine.tokens[1] == alone
    assert engine.ends[1].usage.cached_tokens == (0 if parked else 150)


def test_a_follower_of_one_that_was_restored_meanwhile_computes_what_that_has_not(
    make_engine: MakeEngine, alone: list[int]
) -> None:
    engine = make_engine(4, 4 * CONTEXT)
    engine.turn(run_command(0, OTHERS[0]))
    # The second one takes the sequence of who leaves and follows the first one, which restores it from what it saves;
    # the third one follows the second.
    longer = [*LONG, *OTHERS[1][:30]]
    engine.turn(
        run_command(1, [*LONG, 60], "me"), Halt(0, False), run_command(2, longer, "me"), run_command(3, SHORT, "me")
    )
    engine.finish()
    assert engine.ends[2].usage.cached_tokens == len(LONG)
    assert (engine.tokens[3], engine.ends[3].usage.cached_tokens) == (alone, 0)


@pytest.mark.parametrize("cut", [0, 1, 2, WINDOW // 2, 2 * WINDOW])
def test_a_restored_sequence_goes_on_where_its_window_is_whole(sliding: LlamaModel, cut: int) -> None:
    with closing(LlamaContext(sliding, sequences=2, context_tokens=CONTEXT, threads=1)) as context:
        count = len(LONG)
        context.decode(LONG, list(range(count)), [0] * count, [False] * count)
        context.restore(1, context.save(0))
        cells = count - cut
        needed = context.attends_from(cells)
        assert [context.first_position(number) <= needed for number in (0, 1)] == [True, cut <= 1]
        assert context.saved_from(0) == context.saved_from(1) == context.first_position(1) == count - WINDOW
        logits = []
        for number in (0, 1) if cut <= 1 else ():
            context.cut(number, cells)
            assert context.decode([77], [cells], [number], [True]) == 0
            logits.append(context.logits(0).copy())
        assert len({tuple(each.round(3)) for each in logits}) == (cut <= 1)


def test_what_fits_into_a_window_is_saved_whole(sliding: LlamaModel) -> None:
    with closing(LlamaContext(sliding, sequences=2, context_tokens=CONTEXT, threads=1)) as context:
        count = WINDOW
        context.decode(LONG[:count], list(range(count)), [0] * count, [False] * count)
        context.restore(1, context.save(0))
        assert (context.saved_from(0), context.first_position(1)) == (0, 0)


def test_what_was_cut_after_it_was_restored_is_saved_as_far_as_it_goes(sliding: LlamaModel) -> None:
    with closing(LlamaContext(sliding, sequences=2, context_tokens=CONTEXT, threads=1)) as context:
        count = len(LONG)
        context.decode(LONG, list(range(count)), [0] * count, [False] * count)
        context.restore(1, context.save(0))
        context.cut(1, count - 1)
        saved = context.save(1)
        lowest = context.saved_from(1)
        assert lowest == count - WINDOW > context.attends_from(count - 2)
        context.cut(1, 0)
        context.restore(1, saved)
        assert context.first_position(1) == lowest


@pytest.mark.parametrize("turns", range(4))
def test_a_follower_that_is_parked_before_its_cells_were_copied_goes_on_with_them(
    make_engine: MakeEngine, turns: int
) -> None:
    engine = make_engine(3)
    engine.turn(run_command(0, LONG, "me"), run_command(1, SHORT, "me"))
    for _ in range(turns):
        engine.turn()
    engine.turn(Park(1))
    engine.turn(Resume(1))
    engine.finish()
    ask(engine, 2, SHORT, None)
    assert engine.tokens[1] == engine.tokens[2]
