"""The pending answer to `decide`: readings of labels as they come, and the probabilities of all at the end."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from car_base.ipc import frames
from car_base.ipc.codec import TOKEN_BYTES, vector_of
from car_base.ipc.types import DAMAGED_AUDIO, DAMAGED_IMAGE
from car_daemon.engines.link import WrongFrame
from car_daemon.requests import distribution
from car_daemon.requests.answer import CallOrigin, Responder, Siblings
from car_daemon.requests.generation import UNREPEATABLE, milliseconds, namespace_of
from car_daemon.scheduler.replicas import blocks_of
from car_daemon.scheduler.request import EngineFailure, Prompt, Request
from car_daemon.telemetry.metrics import Latencies
from car_protocol.answer import Progress
from car_protocol.decide import (
    Choice,
    ChoiceAnswer,
    DecideParams,
    Decision,
    DecisionTimings,
    DecisionUsage,
    PredicateAnswer,
    Question,
    QuestionAnswer,
    Score,
    ScoreAnswer,
    type_of,
)
from car_protocol.errors import RpcError
from car_protocol.infer import GenerationOptions


class DecisionAnswer:
    """The questions of a request and the readings so far; times in seconds of `clock`.

    `temperatures` by type of question are from the model's entry.
    """

    def __init__(
        self,
        request: Request,
        params: DecideParams,
        origin: CallOrigin,
        responder: Responder,
        *,
        temperatures: dict[str, float],
        latencies: Latencies,
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self.origin = origin
        self.siblings = Siblings((request.key,))
        self.prompt_tokens = 0  # until it is prepared: of the state and of all questions
        self.sequence: int | None = None
        self.decisions, self.texts = 1, 0
        self._params = params
        self._responder = responder
        self._temperatures = temperatures
        self._latencies = latencies
        self._clock = clock
        self._namespace = namespace_of(origin, params.cache_salt)
        self._prepared = frames.Prepared(request.key, b"", 0)
        self._readings: list[list[float]] = []
        self._answered_at: list[float] = []  # the time of the lease, then of each question's answer
        self._end: frames.End | None = None

    def __repr__(self) -> str:
        return f"<DecisionAnswer to {self.request!r}, {self._answered} of {len(self._params.questions)} questions>"

    @property
    def begun(self) -> bool:
        """Whether a question has its answer."""
        return self._answered > 0

    @property
    def _answered(self) -> int:
        return max(0, len(self._answered_at) - 1)

    def failure(self, context_tokens: int) -> EngineFailure | None:
        """Return the error that its engine, whose sequences have this context, ended it with."""
        match self._end and self._end.fault:
            case None:
                return None
            case "context":
                form = self._form
                tails = iter(form.tails)
                longest = [max(next(tails).length for _ in range(each.readings)) for each in form.questions]
                figures = {"prompt_tokens": form.prefix + max(longest), "max_tokens": None}
                param = f"questions[{longest.index(max(longest))}]"
                return EngineFailure("context_exceeded", {**figures, "context_tokens": context_tokens, "param": param})
            case "image":
                return EngineFailure("invalid_params", {"param": "state", "why": DAMAGED_IMAGE})
            case "audio":
                return EngineFailure("invalid_params", {"param": "state", "why": DAMAGED_AUDIO})
            case "unrepeatable":
                return EngineFailure("model_unavailable", {"lacks": "reproducible", "why": UNREPEATABLE})
            case _:
                return EngineFailure("internal_error", {})

    def as_prepare(self) -> frames.PrepareDecision:
        """Return the frame that prepares the questions."""
        key, owner, names = self.request.key, self.request.spec.client[0], self.origin.names
        return frames.PrepareDecision(key, owner, self._params.prompt, self._namespace, self._temperatures, names)

    def prepared(self, message: frames.Prepared, *, routed: bool) -> Prompt:
        """Keep the prepared form; return its figures: the tails of the questions take turns in the same cells."""
        self._prepared = message
        self.prompt_tokens = len(message.tokens) // TOKEN_BYTES
        form = self._form
        longest = form.prefix + max(tail.length for tail in form.tails)
        blocks = blocks_of(message.tokens, self._namespace) if routed else ()
        return Prompt(self.prompt_tokens, longest - self.prompt_tokens, blocks, bool(message.images))

    def as_run(self) -> frames.Run:
        """Return the frame that runs the request from its beginning; the readings of a dead engine are dropped."""
        assert self.request.leased_at is not None
        self._latencies.queued.observe(self.request.leased_at - self.request.spec.arrived)
        self._readings, self._answered_at = [], [self._clock()]
        options = GenerationOptions(reproducible=self._params.reproducible, lora=self._params.lora)
        return frames.Run(self._prepared, options, self._namespace)

    def add(self, update: frames.RequestUpdate) -> None:
        """Keep the readings of one step, and count the questions that they answer; raises WrongFrame for others."""
        self.sequence, self._end = update.sequence, update.end
        if update.extra is None:
            return
        readings = [vector_of(each) for each in update.extra.vectors]
        tails = self._form.tails[len(self._readings) :][: len(readings)]
        # A figure for all tokens, and one for each label.
        if [len(each) for each in readings] != [tail.labels + 1 for tail in tails]:
            raise WrongFrame("the engine read what no question asks")
        self._readings += readings
        questions, needed = self._params.questions, 0
        answered = 0
        for form in self._form.questions:
            needed += form.readings
            answered += needed <= len(self._readings)
        if new := answered - self._answered:
            self._answered_at += [self._clock()] * new
            if self._params.progress:
                self._responder.progress(Progress(self.origin.id, "questions", done=answered, total=len(questions)))

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Send the request's position in the queue."""
        self._responder.progress(Progress(self.origin.id, "queued", position=position, eta_ms=eta_ms))

    def complete(self) -> None:
        """Send the terminal response; raises ValueError if the readings are not of the questions."""
        assert self._end is not None
        request, now, usage = self.request, self._clock(), self._end.usage
        leased = request.leased_at if request.leased_at is not None else now
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        decision = Decision(
            model=request.model,
            answers=list(self._answers()),
            usage=DecisionUsage(usage.prompt_tokens, cached, usage.prompt_tokens - cached),
            timings=DecisionTimings(
                queue_ms=milliseconds(leased - request.spec.arrived),
                compute_ms=milliseconds(now - leased),
                total_ms=milliseconds(now - request.spec.arrived),
            ),
        )
        self._latencies.decisions += 1
        for question, (before, after) in zip(self._params.questions, pairwise(self._answered_at), strict=True):
            self._latencies.answered(type_of(question), after - before)
        self._responder.result(decision)

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        self._responder.error(RpcError(reason, started=self.begun, **data))

    @property
    def _form(self) -> frames.DecisionForm:
        if self._prepared.decision is None:
            raise ValueError("the engine prepared no decision")
        return self._prepared.decision

    def _answers(self) -> Iterator[QuestionAnswer]:
        readings = iter(self._readings)
        params = self._params
        for question, name, form in zip(params.questions, params.names, self._form.questions, strict=True):
            yield _answer(question, name, form, [next(readings) for _ in range(form.readings)])


def _answer(question: Question, name: str, form: frames.QuestionForm, readings: list[list[float]]) -> QuestionAnswer:
    """Return the answer of a question; raises ValueError for figures that are not numbers."""
    if not all(math.isfinite(figure) for reading in readings for figure in reading):
        raise ValueError("the model computed no numbers")
    found = [distribution.softmax(logits, form.temperature) for _, *logits in readings]
    # The second reading has the options in reverse order.
    probabilities = distribution.averaged([found[0], *(each[::-1] for each in found[1:])])
    mass = math.fsum(distribution.mass(logits, total) for total, *logits in readings) / len(readings)
    match question:
        case Choice():
            best = question.options[distribution.mode(probabilities)].value
            confidence = distribution.choice_confidence(probabilities)
            return ChoiceAnswer(name=name, choice=best, probabilities=probabilities, confidence=confidence, mass=mass)
        case Score():
            return ScoreAnswer(
                name=name,
                score=distribution.mean(probabilities),
                probabilities=probabilities,
                confidence=distribution.score_confidence(probabilities),
                mass=mass,
            )
    if form.ratings:
        so = distribution.mean(probabilities) / (len(probabilities) - 1)
    else:
        so = probabilities[1 if form.reverse else 0]
    return PredicateAnswer(name=name, probability=so, probabilities=[so, 1 - so], mass=mass)
