"""Requests prepared in the tokenizer thread: prompts become tokens and are refused before they wait for a lease."""

import time
from collections.abc import Callable, Collection, Generator, Iterable
from hashlib import blake2b
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from car_base.host.event_log import named
from car_base.ipc.codec import packed_reading, packed_tokens
from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_base.ipc.frames import (
    Chat,
    Detokenize,
    Forget,
    FromEngine,
    PlainText,
    Prepare,
    Prepared,
    PrepareDecision,
    PrepareTexts,
    Refused,
    TokenIds,
    Tokenize,
    TokensCounted,
)
from car_base.ipc.ranges import line
from car_base.ipc.refusal import Refusal
from car_base.ipc.turns import Turns
from car_base.ipc.types import PART_BYTES
from car_engine.batching.reuse.expected import Expected, cells_of
from car_engine.images.ahead import EncodeAhead
from car_engine.prompt.constraints import OutputConstraints, chosen
from car_engine.prompt.conversation import Conversations, RenderedPrompt
from car_engine.prompt.decisions import DecisionPreparer
from car_engine.prompt.job_progress import JobProgress
from car_engine.prompt.jobs import Job, Jobs, QueuedJob, Steps
from car_engine.prompt.text_inputs import TextInputs
from car_engine.prompt.vocabulary import FillTokens, PromptVocabulary
from car_protocol.conversation import SYSTEM_ROLES, Message
from car_protocol.sampling import Sampling

_NOTHING = bytes(PART_BYTES)
# Others wait no longer for a job in steps than for a step of the engine, whose target this is by default.
_TURN_S = STEP_TARGET_MS / 1000


def digests(chat: Chat | None) -> bytes:
    """Return the digest of the tools, zeros without any, then of each message; empty for a text or tokens."""
    if chat is None:
        return b""
    tools = _digest(chat.tools) if chat.tools else _NOTHING
    return b"".join([tools, *map(_digest_of_message, chat.messages)])


def _digest_of_message(message: Message) -> bytes:
    """Return the digest, which is odd for a message of the system."""
    first, *others = _digest(message)
    return bytes([first & ~1 | (message.role in SYSTEM_ROLES), *others])


def _digest(part: object) -> bytes:
    return blake2b(msgspec.msgpack.encode(part), digest_size=PART_BYTES).digest()


class TokenizerThread:
    """Answers jobs in turn by user and by its names, each name's in the order of arrival; forgotten jobs are skipped.

    A job in steps works for a turn, then goes behind the other jobs of its label.
    """

    def __init__(
        self,
        answer: Callable[[Job], FromEngine | Steps],
        inbox: Jobs,
        progress: JobProgress,
        send: Callable[[FromEngine], None],
        command: Callable[[EncodeAhead | Forget], None],
        expected: Expected,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._expected = expected
        self._answer = answer
        self._inbox = inbox
        self._progress = progress
        self._send = send
        self._command = command  # the loop
        self._clock = clock
        self.turns = Turns[QueuedJob]()  # the jobs that it received

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Answer the job whose turn it is; block while there is none."""
        self._receive(wait=self.turns.empty)
        queued = self.turns.take()
        job = queued.job
        if job is None:
            return
        begun = self._clock()
        answer = self._work(job, queued)
        if answer is None:
            self._receive(wait=False)  # what came meanwhile goes first
            self.turns.add(queued.path, queued)
        else:
            self._hand_on(answer, job, queued)
            self._inbox.done(queued)
        self.turns.charge(queued.path, self._clock() - begun)

    def _receive(self, *, wait: bool) -> None:
        for queued in self._inbox.receive(wait=wait):
            self.turns.add(queued.path, queued)

    def _work(self, job: Job, queued: QueuedJob) -> FromEngine | None:
        """Return the answer to a job; None if steps are left after a turn."""
        with self._progress.doing(queued.size, job.key):
            found = queued.steps or self._answer(job)
            if not isinstance(found, Generator):
                return found
            queued.steps, until = found, self._clock() + _TURN_S
            try:
                next(found)
                while self._clock() < until:
                    next(found)
            except StopIteration as end:
                answer: FromEngine = end.value
                return answer
        return None

    def _hand_on(self, answer: FromEngine, job: Job, queued: QueuedJob) -> None:
        if not isinstance(job, Prepare | PrepareDecision) or not isinstance(answer, Prepared):
            self._send(answer)
            return
        if job.namespace is not None:
            self._expected.note(job.key, answer.tokens, cells_of(job.namespace, job.params.adapters))
        if not answer.images:
            self._send(answer)
            return
        self._command(EncodeAhead(job, answer))
        if queued.job is None:
            # It was forgotten meanwhile, and the loop may have received that first.
            self._command(Forget(job.key))


class Preparer:
    """Answers each Job; `warm` builds the expensive parts of samplers before the loop needs them."""

    def __init__(
        self,
        tokenizer: PromptVocabulary,
        conversations: Conversations,
        constraints: OutputConstraints,
        texts: TextInputs,
        decisions: DecisionPreparer,
        warm: Callable[[int, Sampling], None],
        adapters: Collection[str],
        *,
        generates: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._constraints = constraints
        self._text_inputs = texts
        self._decisions = decisions
        self._limit = conversations.limit
        self._warm = warm
        self._adapters = adapters
        self._generates = generates

    def answer(self, job: Job) -> FromEngine | Steps:
        """Do one job, a decision in steps; the answer is Refused if it cannot be done."""
        try:
            match job:
                case Prepare():
                    return self._prepare(job)
                case PrepareDecision():
                    return self._decided(job)
                case PrepareTexts():
                    inputs = self._text_inputs.of(job)
                    packed = packed_tokens(token for each in inputs for token in each)
                    return Prepared(job.key, packed, 1, lengths=[len(each) for each in inputs])
                case Tokenize():
                    tokens = self._tokenize(job)
                    return (
                        TokensCounted(job.key, len(tokens))
                        if job.count_only
                        else TokenIds(job.key, packed_tokens(tokens))
                    )
                case Detokenize():
                    self._check_vocabulary("tokens", job.tokens)
                    return PlainText(job.key, self._tokenizer.detokenize(job.tokens, special=job.special))
        except Exception as error:  # noqa: BLE001 - one prompt must not end the engine under all others
            return _refused(job, error)

    def _decided(self, job: PrepareDecision) -> Steps:
        try:
            self._check_generates(job)
            return (yield from self._decisions.prepare(job))
        except Exception as error:  # noqa: BLE001 - as above
            return _refused(job, error)

    def _prepare(self, job: Prepare) -> Prepared:
        params = job.params
        self._check_generates(job)
        self._check_vocabulary("logit_bias", map(int, params.logit_bias))
        tokens, reading, images, own = self._prompt(job)
        room = self._limit.tokens - len(tokens)
        if room < 1:
            raise self._limit.exceeded(len(tokens), params.max_tokens)
        max_tokens = min(params.max_tokens or room, room)
        constraint = self._constraints.of(job, reading)
        if constraint and chosen(job, reading) is None:
            reading = replace(reading, schemas={})  # its answer may look like a call and be none
        self._warm(job.owner, params)
        ignored = self._constraints.ignored(job, constraint)
        return Prepared(
            job.key,
            packed_tokens(tokens),
            max_tokens,
            constraint,
            packed_reading(reading),
            images=list(images),
            owner=job.owner,
            names=job.names,
            ignored=ignored,
            open_ended=params.max_tokens is None or params.max_tokens > room,
            own=own,
            parts=digests(job.chat),
        )

    def _check_generates(self, job: Prepare | PrepareDecision) -> None:
        if not self._generates:
            if isinstance(job, PrepareDecision):
                raise Refusal("model_unavailable", lacks="decisions", why="it makes vectors alone")
            raise Refusal("model_unavailable", lacks="generate")
        if any(lora.name not in self._adapters for lora in job.params.lora):
            raise Refusal("model_unavailable", lacks="adapter")

    def _prompt(self, job: Prepare) -> RenderedPrompt:
        params = job.params
        if params.tokens is not None:
            self._check_vocabulary("tokens", params.tokens)
            return RenderedPrompt(params.tokens)
        if job.chat is not None:
            return self._conversations.prompt(job.chat, params.max_tokens)
        text = params.prompt or ""
        self._limit.check_bytes(len(text.encode()) + len((params.suffix or "").encode()), params.max_tokens)
        if params.suffix is not None:
            if (fill := self._tokenizer.fill) is None:
                raise Refusal("model_unavailable", lacks="fill")
            return RenderedPrompt(
                fill_prompt(self._tokenizer, fill, text, params.suffix, parse_special=params.parse_special)
            )
        tokens = self._tokenizer.tokenize(text, add_special=True, parse_special=params.parse_special)
        if not tokens and self._tokenizer.begin >= 0:
            tokens = [self._tokenizer.begin]
        if not tokens:
            raise Refusal("invalid_params", param="prompt", why="the prompt is empty, and the model has no begin token")
        return RenderedPrompt(tokens)

    def _tokenize(self, job: Tokenize) -> list[int]:
        if job.chat is not None:
            return self._conversations.prompt(job.chat, None).tokens
        text = job.text or ""
        self._limit.check_bytes(len(text.encode()))
        return self._tokenizer.tokenize(text, add_special=job.add_special, parse_special=job.parse_special)

    def _check_vocabulary(self, param: str, tokens: Iterable[int]) -> None:
        beyond = next((token for token in tokens if token >= self._tokenizer.size), None)
        if beyond is not None:
            why = f"the model has no token {beyond}: its vocabulary ends with {self._tokenizer.size - 1}"
            raise Refusal("invalid_params", param=param, why=why)


def _refused(job: Job, error: Exception) -> Refused:
    if not isinstance(error, Refusal):
        return Refused(job.key, "internal_error", {}, fault=named(error))
    # A template may write a whole message into its own refusal.
    data = {name: line(value) if isinstance(value, str) else value for name, value in error.data.items()}
    return Refused(job.key, error.reason, data)


def fill_prompt(
    vocabulary: PromptVocabulary, fill: FillTokens, prefix: str, suffix: str, *, parse_special: bool
) -> list[int]:
    """Return the prompt whose answer stands between two texts: the prefix first, as such models are trained most."""
    before, after = (
        vocabulary.tokenize(text, add_special=False, parse_special=parse_special) for text in (prefix, suffix)
    )
    begin = [vocabulary.begin] if vocabulary.adds_begin else []
    return [*begin, fill.prefix, *before, fill.suffix, *after, fill.middle]
