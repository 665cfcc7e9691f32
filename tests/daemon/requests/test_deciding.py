"""The pending answer of a decision: readings into probabilities, and no answer of a dead engine."""

import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.codec import FrameReader, decode_to_engine, encode_frame, packed_vector
from car_base.ipc.frames import DecisionForm, End, Extra, Fault, Prepared, QuestionForm, RequestUpdate, Tail
from car_daemon.engines.link import WrongFrame
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.deciding import DecisionAnswer
from car_daemon.requests.generation import request_of
from car_daemon.telemetry.metrics import Latencies
from car_protocol.answer import Progress, Usage
from car_protocol.decide import (
    Choice,
    ChoiceAnswer,
    DecideParams,
    Decision,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
    ScoreAnswer,
)

ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)
CHOICE = Choice(name="team", instructions="?", options=[Option("a"), Option(True), Option("c")])
SCORE = Score(instructions="?", levels=[Level("low"), Level("mid"), Level("high")])
PREDICATE = Predicate(instructions="?")


class Client:
    """The client's side of a decision."""

    def __init__(self) -> None:
        self.results: list[Decision] = []
        self.reports: list[Progress] = []

    def result(self, result: Decision) -> None:
        self.results.append(result)

    def progress(self, params: Progress) -> None:
        self.reports.append(params)


def _labels(question: Question, form: QuestionForm) -> int:
    match question:
        case Choice():
            return len(question.options)
        case Score():
            return len(question.levels)
    return 9 if form.ratings else 2


class Asked:
    """A decision that runs, and what its client got."""

    def __init__(self, questions: list[Question], forms: list[QuestionForm], **params: Any) -> None:
        self.client, self.latencies = Client(), Latencies()
        given_params = DecideParams(state="x", questions=questions, **params)
        request = request_of(given_params, ORIGIN, [7], 0, "m", size=1, now=0.0)
        self.answer = DecisionAnswer(
            request,
            given_params,
            ORIGIN,
            cast(Responder, self.client),
            temperatures={"choice": 2.0},
            latencies=self.latencies,
            clock=lambda: 1.0,
        )
        tails = [
            Tail(2, _labels(*each)) for each in zip(questions, forms, strict=True) for _ in range(each[1].readings)
        ]
        tokens = bytes(4 * (10 + 2 * len(tails)))
        prepared = Prepared(7, tokens, 1, decision=DecisionForm(10, tails, forms))
        self.prompt = self.answer.prepared(prepared, routed=False)
        request.leased_at = 0.5
        self.answer.as_run()

    def read(self, *figures: float) -> None:
        """Let the engine report one reading: the logarithm of all weights, and logits."""
        extra = Extra(vectors=[packed_vector(figures)])
        self.answer.add(RequestUpdate(7, 0, "", 0, 5, extra))

    def end(self, fault: Fault | None = None) -> None:
        """Let the engine end it."""
        end = End(None if fault else "stop", None, Usage(30, 20, 0), 0.0, 0.0, fault)
        self.answer.add(RequestUpdate(7, 0, "", 0, 5, end=end))

    @property
    def decision(self) -> Decision:
        """Return the result."""
        self.answer.complete()
        return self.client.results[-1]


def test_each_type_of_question_has_its_figures() -> None:
    asked = Asked([CHOICE, SCORE, PREDICATE], [QuestionForm(1, 1.0)] * 3)
    asked.read(math.log(20), math.log(2), math.log(6), math.log(2))
    asked.read(0.0, *[math.log(0.25), math.log(0.25), math.log(0.5)])
    asked.read(0.0, math.log(0.6), math.log(0.2))
    asked.end()
    choice, score, predicate = asked.decision.answers
    assert isinstance(choice, ChoiceAnswer)
    assert isinstance(score, ScoreAnswer)
    assert isinstance(predicate, PredicateAnswer)
    assert (choice.name, choice.choice) == ("team", True)
    assert choice.probabilities == pytest.approx([0.2, 0.6, 0.2])
    assert [choice.confidence, choice.mass] == pytest.approx([0.4, 0.5])
    assert score.name == "1"
    assert [score.score, score.mass] == pytest.approx([1.25, 1.0])
    assert [predicate.probability, *predicate.probabilities, predicate.mass] == pytest.approx([0.75, 0.75, 0.25, 0.8])
    usage = asked.decision.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens, usage.answer_tokens) == (30, 20, 10, 0)


def test_the_second_order_of_a_choice_is_turned_back_before_both_are_averaged() -> None:
    asked = Asked([CHOICE], [QuestionForm(2, 1.0)])
    asked.read(0.0, math.log(0.5), math.log(0.3), math.log(0.2))
    asked.read(0.0, math.log(0.4), math.log(0.3), math.log(0.3))
    asked.end()
    (answer,) = asked.decision.answers
    assert answer.probabilities == pytest.approx([0.4, 0.3, 0.3])


def test_a_predicate_may_be_ratings_or_have_the_other_side_first() -> None:
    asked = Asked([PREDICATE, PREDICATE], [QuestionForm(1, 1.0, ratings=True), QuestionForm(1, 1.0, reverse=True)])
    asked.read(0.0, *[math.log(1 / 9)] * 8, math.log(1 / 9))
    asked.read(0.0, math.log(0.9), math.log(0.1))
    asked.end()
    first, second = asked.decision.answers
    assert isinstance(first, PredicateAnswer)
    assert isinstance(second, PredicateAnswer)
    assert [first.probability, second.probability] == pytest.approx([0.5, 0.1])


def test_a_temperature_makes_probabilities_more_alike() -> None:
    asked = Asked([CHOICE], [QuestionForm(1, 1000.0)])
    asked.read(0.0, 1.0, 5.0, 2.0)
    asked.end()
    assert asked.decision.answers[0].probabilities == pytest.approx([1 / 3] * 3, abs=0.01)


@given(st.lists(st.floats(-80, 0), min_size=3, max_size=3), st.floats(0.1, 10))
def test_probabilities_sum_to_one(logits: list[float], temperature: float) -> None:
    asked = Asked([CHOICE, SCORE], [QuestionForm(1, temperature)] * 2)
    for _ in range(2):
        asked.read(0.0, *logits)
    asked.end()
    assert all(math.isclose(math.fsum(each.probabilities), 1, abs_tol=1e-6) for each in asked.decision.answers)


def test_the_readings_of_a_dead_engine_are_dropped() -> None:
    asked = Asked([CHOICE], [QuestionForm(1, 1.0)])
    asked.read(0.0, 9.0, 0.0, 0.0)
    asked.answer.as_run()
    asked.read(0.0, 0.0, 0.0, 9.0)
    asked.end()
    (answer,) = asked.decision.answers
    assert isinstance(answer, ChoiceAnswer)
    assert answer.choice == "c"
    assert asked.latencies.questions == {"choice": 1}


def test_progress_has_the_questions_that_are_done_and_not_the_readings() -> None:
    asked = Asked([CHOICE, PREDICATE], [QuestionForm(2, 1.0), QuestionForm(1, 1.0)], progress=True)
    for labels in (3, 3, 2):
        asked.read(0.0, *[0.0] * labels)
    assert [(each.phase, each.done, each.total) for each in asked.client.reports] == [
        ("questions", 1, 2),
        ("questions", 2, 2),
    ]
    assert asked.latencies.questions == {}
    asked.end()
    assert len(asked.decision.answers) == 2
    assert asked.latencies.questions == {"choice": 1, "predicate": 1}


@pytest.mark.parametrize("figures", [[0.0, math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0, 0.0]])
def test_figures_that_are_no_numbers_are_no_answer(figures: list[float]) -> None:
    asked = Asked([CHOICE], [QuestionForm(1, 1.0)])
    asked.read(*figures)
    asked.end()
    with pytest.raises(ValueError, match="numbers"):
        asked.answer.complete()


def test_its_cost_is_the_prefix_and_all_tails_and_it_needs_room_for_the_longest_alone() -> None:
    prompt = Asked([CHOICE, PREDICATE], [QuestionForm(2, 1.0), QuestionForm(1, 1.0)]).prompt
    assert (prompt.tokens, prompt.tokens + prompt.room) == (16, 12)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("context", "context_exceeded"), ("image", "invalid_params"), ("unrepeatable", "model_unavailable")],
)
def test_a_fault_of_the_engine_is_the_error_of_the_request(fault: Fault, reason: str) -> None:
    asked = Asked([CHOICE], [QuestionForm(1, 1.0)])
    asked.end(fault)
    failure = asked.answer.failure(64)
    assert failure is not None
    assert failure.reason == reason


def test_a_context_that_is_too_short_names_the_question_that_needs_most() -> None:
    asked = Asked([PREDICATE, CHOICE, SCORE], [QuestionForm(1, 1.0), QuestionForm(2, 1.0), QuestionForm(1, 1.0)])
    form = asked.answer.as_run().prepared.decision
    assert form is not None
    form.tails[2] = Tail(5, 3)
    asked.end("context")
    failure = asked.answer.failure(12)
    assert failure is not None
    assert (failure.data["param"], failure.data["prompt_tokens"]) == ("questions[1]", 15)


def test_an_engine_gets_the_questions_and_the_temperatures_of_the_models_entry() -> None:
    asked = Asked([CHOICE, SCORE, PREDICATE], [QuestionForm(1, 1.0)] * 3, cache_salt="s")
    (body,) = FrameReader().feed(encode_frame(asked.answer.as_prepare()))
    frame = decode_to_engine(body)
    assert frame == asked.answer.as_prepare()
    assert (asked.answer.as_prepare().namespace, asked.answer.as_prepare().temperatures) == ("0:s", {"choice": 2.0})


@pytest.mark.parametrize("figures", [(0.0, 1.0), (0.0, 1.0, 2.0, 3.0), (0.0,) * 1000])
def test_an_engine_that_reads_other_labels_than_the_question_has_is_ended(figures: tuple[float, ...]) -> None:
    asked = Asked([PREDICATE], [QuestionForm(1, 1.0)])
    with pytest.raises(WrongFrame):
        asked.read(*figures)


def test_an_engine_that_answers_more_questions_than_were_asked_is_ended() -> None:
    asked = Asked([PREDICATE], [QuestionForm(1, 1.0)])
    asked.read(0.0, 1.0, 2.0)
    with pytest.raises(WrongFrame):
        asked.read(0.0, 1.0, 2.0)
