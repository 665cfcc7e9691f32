"""A small random walk through the real engine: every answer is the one that its prompt has alone."""

import tomllib
from array import array
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from car_base.ipc.frames import Chat, End, FromEngine, Halt, Park, Prepared, Resume, Run, StepDone
from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import StepPlanner
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.reuse.expected import Expected
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import SequenceTable
from car_engine.images.ahead import RowsAhead
from car_engine.images.awaited_images import AwaitedImages
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel
from car_engine.llama.sampler import LabelReadout, Logprobs
from car_engine.llama.tokens import Vocabulary
from car_engine.runner.generation import AnswerTokens
from car_engine.runner.loop import Command, Commands, EngineLoop, ThreadCount
from car_engine.runner.parking import ParkingLot
from car_engine.runner.running import DecodingAbilities, RunningRequests
from car_engine.runner.stepper import SamplingTurns, Stepper
from car_engine.runner.texts import Texts
from car_protocol.answer import Logprob
from car_protocol.conversation import Message
from car_protocol.infer import GenerationOptions
from tests.engine.fakes import FakeEmbedder
from tests.engine.llama.conftest import MakeContext, chains_of
from tests.engine.prompt.chats import opened
from tests.pace import SetClock

QUESTIONS = Path(__file__).parents[3] / "tools" / "guide" / "questions.toml"
SEQUENCES = 4
MAX_TOKENS = 60


class RealEngine:
    """An engine loop on llama.cpp, turned by hand; a step takes `tick` seconds by its clock."""

    def __init__(
        self,
        context: LlamaContext,
        vocabulary: Vocabulary,
        *,
        tick: float,
        saved_bytes: int,
        speculates: bool = False,
    ) -> None:
        self.context = context
        self.table = SequenceTable(context.sequences, context.context_tokens)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Logprob]] = {}
        self.ends: dict[int, End] = {}
        self.threads = ThreadCount(costs := StepCosts({1: tick, 64: 1.1 * tick}) if speculates else StepCosts())
        self.threads.add(context.set_threads)
        clock, index = SetClock(tick=tick), Index(context.memory)
        saved = SavedCells(saved_bytes, index)
        moves = MoveCosts(costs, context.context_tokens, 1000, clock)
        sampling = SamplingTurns(context, Logprobs(vocabulary).of, clock)
        self.loop = EngineLoop(
            commands=Commands(),
            running=RunningRequests(
                build_sampler=chains_of(vocabulary, context).build,
                tokens=AnswerTokens(vocabulary.ends, vocabulary.showing, lambda _: []),
                cache=PrefixCache(
                    context,
                    self.table,
                    saved,
                    index,
                    moves,
                    Expected(),
                ),
                sampling=sampling,
                images=AwaitedImages(lambda _: None, RowsAhead(lambda _: None, self._receive, 0)),
                parking=ParkingLot(context, saved, moves),
                abilities=DecodingAbilities(speculates and context.memory.guesses > 0),
                clock=clock,
            ),
            texts=Texts(lambda: FakeEmbedder().in_batches, clock),
            table=self.table,
            planner=StepPlanner(costs, context.batch_tokens, step_target=0.05, idle_target=0.2, memory=context.memory),
            stepper=Stepper(context, costs, sampling, LabelReadout([]).of, lambda _: None, clock),
            threads=self.threads,
            send=self._receive,
        )

    def turn(self, *commands: Command) -> None:
        """Let the loop do one turn and check that memory holds what was committed."""
        self.loop.turn(list(commands))
        for sequence in self.table.sequences:
            assert self.context.last_position(sequence.number) == sequence.cells - 1

    def finish(self) -> None:
        """Let all that runs end."""
        for _ in range(10_000):
            if not self.table.busy:
                return
            self.turn()
        raise AssertionError

    def _receive(self, message: FromEngine) -> None:
        if isinstance(message, StepDone):
            for update in message.updates:
                assert update.key not in self.ends
                self.tokens.setdefault(update.key, []).extend(update.extra.tokens if update.extra else ())
                self.logprobs.setdefault(update.key, []).extend(update.extra.logprobs if update.extra else ())
                if update.end is not None:
                    self.ends[update.key] = update.end


def run_command(key: int, prompt: list[int], namespace: str | None = None) -> Run:
    prepared = Prepared(key, array("i", prompt).tobytes(), MAX_TOKENS)
    return Run(prepared, GenerationOptions(temperature=0.0, seed=1, return_tokens=True), namespace)


@pytest.fixture(scope="module")
def entries() -> list[dict[str, str]]:
    """Some of what the guide model was taught."""
    taught: list[dict[str, str]] = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["entry"]
    return taught[:12]


@pytest.fixture(scope="module")
def prompts(model: LlamaModel, vocabulary: Vocabulary, entries: list[dict[str, str]]) -> list[list[int]]:
    """Trained questions as conversations: some alone, some after others, so that their lengths differ."""
    assert model.metadata.chat_template is not None
    template = opened(model.metadata.chat_template, vocabulary)
    made = []
    for place, entry in enumerate(entries):
        before = entries[: place % 3]
        messages = [
            message
            for earlier in before
            for message in (Message("user", earlier["question"]), Message("assistant", earlier["answer"]))
        ]
        chat = Chat(messages=[*messages, Message("user", entry["question"])])
        made.append(template.render(chat).tokens)
    return made


@pytest.fixture(scope="module")
def answers(prompts: list[list[int]], model: LlamaModel, vocabulary: Vocabulary) -> list[list[int]]:
    """The answer to each prompt when it runs alone."""
    with closing(LlamaContext(model, sequences=1, context_tokens=1024, threads=1)) as context:
        return answers_of(prompts, RealEngine(context, vocabulary, tick=0.0001, saved_bytes=0))


def answers_of(prompts: list[list[int]], engine: RealEngine) -> list[list[int]]:
    """Ask one prompt after the other."""
    for key, prompt in enumerate(prompts):
        engine.turn(run_command(key, prompt))
        engine.finish()
    return [engine.tokens[key] for key in range(len(prompts))]


def test_a_question_alone_is_answered_as_it_was_taught(
    entries: list[dict[str, str]], answers: list[list[int]], vocabulary: Vocabulary
) -> None:
    for entry, answer in list(zip(entries, answers, strict=True))[::3]:
        text = vocabulary.detokenize(answer, special=False).strip()
        assert text
        assert entry["answer"].startswith(text)


@pytest.mark.parametrize(
    ("seed", "speculates"),
    [
        *((0, False), (1, False), (1, True)),
        *(pytest.param(seed, seed > 5, marks=pytest.mark.slow) for seed in range(2, 9)),
    ],
)
def test_every_answer_is_the_one_it_has_alone(
    seed: int,
    speculates: bool,
    prompts: list[list[int]],
    answers: list[list[int]],
    make_context: MakeContext,
    vocabulary: Vocabulary,
) -> None:
    random = Random(seed)
    engine = RealEngine(
        # Of the smaller one a prefix is copied within the context, of the larger one through host memory.
        make_context(SEQUENCES, 256 if seed % 2 else 1024),
        vocabulary,
        tick=random.choice([0.0005, 0.01, 0.05]),
        saved_bytes=random.choice([0, 10**9]),
        speculates=speculates,
    )
    asked: dict[int, int] = {}
    active: list[int] = []
    aside: list[int] = []
    halted: set[int] = set()
    for _ in range(300):
        active = [key for key in active if key not in engine.ends]
        kind = random.choice(["run", "run", "park", "resume", "halt", *[""] * 8])
        commands: list[Command] = []
        if kind == "run" and len(active) < SEQUENCES:
            key = len(asked)
            asked[key] = random.randrange(len(prompts))
            active.append(key)
            commands = [run_command(key, prompts[asked[key]], namespace="me")]
        elif kind == "park" and active:
            aside.append(active.pop(random.randrange(len(active))))
            commands = [Park(aside[-1])]
        elif kind == "resume" and aside and len(active) < SEQUENCES:
            active.append(aside.pop(0))
            commands = [Resume(active[-1])]
        elif kind == "halt" and active and random.random() < 0.5:
            key = active.pop(random.randrange(len(active)))
            halted.add(key)
            commands = [Halt(key, deadline=False)]
        engine.turn(*commands)
    while aside:
        engine.finish()
        engine.turn(Resume(aside.pop()))
    engine.finish()
    for key, place in asked.items():
        tokens = engine.tokens.get(key, [])
        assert tokens == (answers[place][: len(tokens)] if key in halted else answers[place])
    assert sum(end.usage.cached_tokens for end in engine.ends.values()) > 0
    assert (engine.loop.counters["lookup_right"] > 0) is speculates
