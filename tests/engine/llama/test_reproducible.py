"""Reproducible requests on llama.cpp: equal log-probabilities on any walk, for every kind of memory."""

from array import array
from contextlib import closing
from random import Random

import pytest

from car_base.ipc.frames import Park, Prepared, Resume, Run, SetThreads
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel
from car_engine.llama.tokens import Vocabulary
from car_engine.runner.loop import Command
from car_protocol.answer import Logprob
from car_protocol.infer import GenerationOptions
from tests.engine.llama.kinds import any_model
from tests.engine.llama.test_walk import RealEngine

__all__ = ["any_model"]  # a fixture

SEQUENCES = 4
CONTEXT = 1024
ANSWER = 10
RANDOM = Random(1)
SHARED = [RANDOM.randrange(20, 400) for _ in range(700)]
# Lengths on both sides of 256 cells, where llama.cpp's attention begins to depend on threads, and of the grid's cuts.
PROMPTS = [
    SHARED[:common] + [RANDOM.randrange(20, 400) for _ in range(own)]
    for common, own in ((0, 10), (64, 64), (100, 1), (300, 50), (500, 140), (576, 65), (700, 3))
]


def engine_of(context: LlamaContext, model: LlamaModel, *, tick: float, saved_bytes: int) -> RealEngine:
    return RealEngine(context, Vocabulary(model), tick=tick, saved_bytes=saved_bytes, speculates=True)


def run_command(key: int, prompt: list[int], *, reproducible: bool = True, namespace: str | None = None) -> Run:
    """Return the start of a request: greedy or seeded by the prompt's length."""
    options = GenerationOptions(
        temperature=len(prompt) % 2 * 1.5,
        ignore_eos=True,
        seed=7,
        return_tokens=True,
        logprobs=20,
        reproducible=reproducible,
    )
    return Run(Prepared(key, array("i", prompt).tobytes(), ANSWER), options, namespace)


@pytest.fixture(scope="module")
def alone(any_model: LlamaModel) -> list[list[Logprob]]:
    """The log-probabilities of each prompt's answer when it runs alone."""
    with closing(LlamaContext(any_model, sequences=1, context_tokens=CONTEXT, threads=1)) as context:
        engine = engine_of(context, any_model, tick=0.0001, saved_bytes=0)
        for key, prompt in enumerate(PROMPTS):
            engine.turn(run_command(key, prompt))
            engine.finish()
        return [engine.logprobs[key] for key in range(len(PROMPTS))]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4))])
def test_every_answer_has_the_log_probabilities_that_it_has_alone(
    seed: int, any_model: LlamaModel, alone: list[list[Logprob]]
) -> None:
    random = Random(seed)
    with closing(LlamaContext(any_model, sequences=SEQUENCES, context_tokens=CONTEXT, threads=1)) as context:
        saved_bytes = 10**9 if seed % 2 else 0
        engine = engine_of(context, any_model, tick=random.choice([0.0005, 0.05]), saved_bytes=saved_bytes)
        asked: dict[int, int] = {}
        active: list[int] = []
        parked: list[int] = []
        for turn in range(160):
            active = [key for key in active if key not in engine.ends]
            # Two threads for some turns alone: beside other programs they wait for each other most of the time.
            commands: list[Command] = [SetThreads(1)]
            match random.choice(["run", "run", "park", "resume", "threads", *[""] * 4]):
                case "run" if len(active) < SEQUENCES:
                    place, exact = random.randrange(len(PROMPTS)), random.random() < 0.6
                    commands.append(run_command(turn, PROMPTS[place], reproducible=exact, namespace="me"))
                    active.append(turn)
                    if exact:
                        asked[turn] = place
                case "park" if active:
                    parked.append(active.pop(random.randrange(len(active))))
                    commands.append(Park(parked[-1]))
                case "resume" if parked and len(active) < SEQUENCES:
                    active.append(parked.pop(0))
                    commands.append(Resume(active[-1]))
                case "threads":
                    commands.append(SetThreads(2))
            engine.turn(*commands)
        while engine.table.busy or parked:
            engine.turn(*([Resume(parked.pop())] if parked and engine.table.idle else []))
    assert len(asked) > 5
    for key, place in asked.items():
        assert engine.logprobs[key] == alone[place]
