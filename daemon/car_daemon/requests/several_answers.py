"""The answers to one prompt, collected into one result."""

from msgspec import Struct, structs

from car_base.ipc import frames
from car_daemon.requests.answer import Responder
from car_daemon.requests.generation import seed_of
from car_protocol.answer import Answer, OneAnswer, Progress, Timings, Usage
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams

_OWN = OneAnswer.__struct_fields__


def split(params: InferParams, responder: Responder, *, streams: bool) -> list[tuple[InferParams, Responder]]:
    """Return the params and the receiver of each answer; the first one has the progress."""
    seed = seed_of(params)
    params = structs.replace(params, seed=seed)
    several = SeveralAnswers(responder, params.n, seed=seed, streams=streams)
    own = [
        structs.replace(params, seed=seed_of(params, i), progress=params.progress and not i) for i in range(params.n)
    ]
    return [(each, several.responder(index)) for index, each in enumerate(own)]


class SeveralAnswers:
    """The result of `n` answers, sent with the last one, or the first error; later answers are dropped."""

    def __init__(self, responder: Responder, n: int, *, seed: int, streams: bool) -> None:
        self._responder = responder
        self._seed = seed
        self._streams = streams
        self._answers: list[Answer | None] = [None] * n
        self._ended = False

    def __repr__(self) -> str:
        return f"<SeveralAnswers {sum(each is not None for each in self._answers)}/{len(self._answers)}>"

    def responder(self, index: int) -> "AnswerResponder":
        """Return the receiver of one of the answers."""
        return AnswerResponder(self, self._responder, index)

    def add(self, index: int, answer: Answer) -> None:
        """Add an answer; the last one sends the result."""
        self._answers[index] = answer
        answers = [each for each in self._answers if each is not None]
        if len(answers) == len(self._answers) and not self._ended:
            self._ended = True
            self._responder.result(self._result(answers))

    def fail(self, error: RpcError) -> None:
        """Send an error in place of the result."""
        if not self._ended:
            self._ended = True
            begun = any(each is not None and each.usage.completion_tokens for each in self._answers)
            error.started = error.started or begun
            self._responder.error(error)

    def _result(self, answers: list[Answer]) -> Answer:
        first = min(answers, key=lambda each: each.timings.ttft_ms)
        return Answer(
            answers=[
                OneAnswer(**{name: value for name, value in structs.asdict(each).items() if name in _OWN})
                for each in answers
            ],
            model=first.model,
            seed=self._seed,
            usage=_usage([each.usage for each in answers]),
            timings=_timings([each.timings for each in answers]),
            fingerprint=first.fingerprint,
            ignored=first.ignored,
            chunks=self._responder.chunks if self._streams else None,
        )


class AnswerResponder:
    """The receiver of one of several answers, whose chunks have its index."""

    def __init__(self, answers: SeveralAnswers, responder: Responder, index: int) -> None:
        self._answers = answers
        self._responder = responder
        self._index = index

    @property
    def chunks(self) -> int:
        """The chunks of all answers."""
        return self._responder.chunks

    def chunk(self, text: str, extra: frames.Extra | None, index: int | None = None) -> None:
        """Send one piece of this answer."""
        self._responder.chunk(text, extra, self._index if index is None else index)

    def progress(self, params: Progress) -> None:
        """Send the progress of the first answer."""
        self._responder.progress(params)

    def result(self, result: Struct) -> None:
        """Add this answer."""
        assert isinstance(result, Answer)
        self._answers.add(self._index, result)

    def error(self, error: RpcError) -> None:
        """Send the error in place of all answers."""
        self._answers.fail(error)


def _usage(usages: list[Usage]) -> Usage:
    """Return the prompt once, with the cells that the first computation found, and the tokens of all answers."""
    return Usage(
        usages[0].prompt_tokens,
        min(usage.cached_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        usages[0].parted,
    )


def _timings(timings: list[Timings]) -> Timings:
    """Return the times from the first lease to the last token."""
    first = min(timings, key=lambda each: each.ttft_ms)
    last_token = max(each.ttft_ms + each.decode_ms for each in timings)
    return Timings(
        queue_ms=min(each.queue_ms for each in timings),
        prefill_ms=first.prefill_ms,
        ttft_ms=first.ttft_ms,
        decode_ms=round(last_token - first.ttft_ms, 3),
        total_ms=max(each.total_ms for each in timings),
    )
