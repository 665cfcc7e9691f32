"""The pending answer to `infer` and `infer_stream`: text, logprobs, tool calls and timings."""

import os
from collections.abc import Callable, Sequence

from msgspec import structs

from car_base.ipc import frames
from car_base.ipc.codec import TOKEN_BYTES
from car_base.ipc.types import DAMAGED_AUDIO, DAMAGED_IMAGE, TOO_COMPLEX
from car_daemon.connections.answer_pieces import AnswerPieces
from car_daemon.engines.link import WrongFrame
from car_daemon.requests.answer import CallOrigin, Responder, Siblings
from car_daemon.requests.explanations import Answered
from car_daemon.scheduler.replicas import blocks_of
from car_daemon.scheduler.request import EngineFailure, Prompt, Request, RequestSpec, Supersede
from car_daemon.telemetry.metrics import Latencies, TokenClock
from car_protocol.answer import MOSTLY_NEW, Answer, Progress, Timings, Usage
from car_protocol.decide import DecideParams
from car_protocol.errors import RpcError
from car_protocol.infer import SEEDS, GenerationOptions, InferParams, PromptParams, SupersedeScope, part_of

UNREPEATABLE = (
    "this engine did not load with weights packed for the CPU, or its llama.cpp computes long prompts on a GPU: either "
    "changes results"
)
# Tokens that an answer of any length has room for; with all that the longest context leaves it would run there alone.
_OPEN_ENDED_ROOM = 1024
# The most bytes of an answer for each of its tokens: a token and its 20 alternatives may have 3,000 bytes each. A
# hostile file may control an engine, which would fill the daemon's memory.
_TOKEN_BYTES = 64 << 10


def request_of(
    params: InferParams | DecideParams,
    origin: CallOrigin,
    keys: Sequence[int],
    index: int,
    model: str,
    *,
    size: int,
    now: float,
) -> Request:
    """Return the scheduler's request for one answer to `params`, which came `now` in a frame of `size` bytes.

    `keys` are the keys of all answers; the first answer keeps the prompt.
    """
    spec = RequestSpec(
        key=keys[index],
        group=keys[0] if len(keys) > 1 else None,
        behind=len(keys) - 1 - index,
        model=model,
        arrived=now,
        client=(origin.identity.number, params.client if params.client is not None else origin.pid),
        process=origin.pid,
        tenant=origin.tenant,
        decides=isinstance(params, DecideParams),
        size=0 if index else size,
        priority="throughput" if origin.background else params.priority,
        wait=params.wait,
        queue=params.queue,
        supersede=None
        if isinstance(params, DecideParams) or params.supersede is None
        else supersede_key(params.supersede, params.supersede_scope, origin),
        progress=params.progress,
        device=params.device,
        session=None if params.session is None else (origin.identity.number, params.session),
        timeout=params.timeout_ms and params.timeout_ms / 1000,
        queue_timeout=params.queue_timeout_ms and params.queue_timeout_ms / 1000,
    )
    return Request(spec)


def supersede_key(key: str, scope: SupersedeScope, origin: CallOrigin) -> Supersede:
    """Return whose requests a key ends, and the key."""
    whose = (origin.identity.namespace, key)
    if scope == "connection":
        return ("connection", origin.connection, *whose)
    return ("program", origin.pid, origin.tenant, *whose)


class GenerationAnswer:
    """A request's options and the answer so far; times in seconds of `clock`.

    `fingerprint` returns that of the engines that serve the model now. `explain` returns a usage with the reason why
    not more of the prompt was cached.
    """

    def __init__(  # noqa: PLR0913 - what differs by request, by model and by daemon meets here
        self,
        request: Request,
        params: InferParams,
        origin: CallOrigin,
        responder: Responder,
        *,
        streams: bool,
        latencies: Latencies,
        clock: Callable[[], float],
        siblings: Siblings,
        fingerprint: Callable[[], str | None],
        explain: Callable[[Answered, Usage], Usage],
    ) -> None:
        self.request = request
        self.origin = origin
        self.siblings = siblings
        self.prompt_tokens = 0  # until it is prepared
        self.decisions = self.texts = 0
        self.sequence: int | None = None
        self._params = params
        self._responder = responder
        self._streams = streams
        self._latencies = latencies
        self._clock = clock
        self._fingerprint = fingerprint
        self._explain = explain
        self._seed = seed_of(params)
        self._namespace = _namespace(params, origin, request.spec.group)
        self._prepared = frames.Prepared(request.key, b"", 0)
        self._tokens = TokenClock(latencies, request.spec.arrived, clock)
        self._pieces = AnswerPieces()  # of an answer that does not stream
        self._bytes_left = _TOKEN_BYTES  # for the next pieces
        self._open_call: int | None = None  # the index of the call that goes on
        self._engine: int | None = None  # the last one that it ran in
        self._end: frames.End | None = None

    def __repr__(self) -> str:
        return f"<GenerationAnswer to {self.request!r}, {self.request.produced} tokens>"

    @property
    def begun(self) -> bool:
        """Whether it has a token."""
        return self._tokens.first_at is not None

    def failure(self, context_tokens: int) -> EngineFailure | None:
        """Return the error that its engine, whose sequences have this context, ended it with."""
        match self._end and self._end.fault:
            case None:
                return None
            case "context":
                figures = {"prompt_tokens": self.prompt_tokens, "max_tokens": self._params.max_tokens}
                return EngineFailure("context_exceeded", {**figures, "context_tokens": context_tokens})
            case "image":
                return EngineFailure("invalid_params", {"param": "messages", "why": DAMAGED_IMAGE})
            case "audio":
                return EngineFailure("invalid_params", {"param": "messages", "why": DAMAGED_AUDIO})
            case "constraint":
                bound_by = [name for name in ("grammar", "json_schema") if getattr(self._params, name) is not None]
                return EngineFailure("invalid_params", {"param": [*bound_by, "tools"][0], "why": TOO_COMPLEX})
            case "unrepeatable":
                return EngineFailure("model_unavailable", {"lacks": "reproducible", "why": UNREPEATABLE})
            case _:
                return EngineFailure("internal_error", {})

    def as_prepare(self) -> frames.Prepare:
        """Return the frame that prepares the prompt."""
        prompt = part_of(self._params, PromptParams, self._seed)
        owner, names = self.request.spec.client[0], self.origin.names
        return frames.Prepare(self.request.key, owner, prompt, self._namespace, names)

    def prepared(self, message: frames.Prepared, *, routed: bool) -> Prompt:
        """Keep the prepared form, which may be that of another answer to the prompt; return its figures."""
        key = self.request.key
        self._prepared = message if message.key == key else structs.replace(message, key=key)
        self.prompt_tokens = len(message.tokens) // TOKEN_BYTES
        namespace = self._namespace
        blocks = blocks_of(message.tokens, namespace) if routed and namespace is not None else ()
        room = min(message.max_tokens, _OPEN_ENDED_ROOM) if message.open_ended else message.max_tokens
        return Prompt(self.prompt_tokens, room, blocks, bool(message.images))

    def as_run(self) -> frames.Run:
        """Return the frame that runs the request from its beginning; the output of a dead engine is dropped."""
        request = self.request
        if request.retried:
            self._pieces, self._bytes_left = AnswerPieces(), _TOKEN_BYTES
            self._open_call = None
            self._tokens = TokenClock(self._latencies, request.spec.arrived, self._clock)
        assert request.leased_at is not None
        self._engine = request.engine
        self._latencies.queued.observe(request.leased_at - request.spec.arrived)
        options = part_of(self._params, GenerationOptions, self._seed)
        return frames.Run(self._prepared, options, self._namespace)

    def add(self, update: frames.RequestUpdate) -> None:
        """Add the output of one step; a stream sends it at once. Raises WrongFrame for more than tokens can be."""
        self.sequence = update.sequence
        self._end = update.end
        if self._params.progress and self._tokens.first_at is None and (update.sampled or update.end is None):
            done, total, cached = update.prompt_done, self.prompt_tokens, self.request.cached + update.cached
            self._responder.progress(Progress(self.origin.id, "prefill", done=done, total=total, cached=cached))
        if update.sampled:
            self._tokens.token()
        for part in update.extra.calls if update.extra is not None else ():
            if isinstance(part, frames.CallDelta):
                self._open_call = None if part.ended else part.index
        if not self._streams:
            self._bytes_left += update.sampled * _TOKEN_BYTES - self._pieces.add(update.text, update.extra)
            if self._bytes_left < 0:
                raise WrongFrame("the engine wrote more than its tokens can be")
        elif update.text or update.extra is not None:
            self.request.sent = True
            self._responder.chunk(update.text, update.extra)

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Send the request's position in the queue."""
        self._responder.progress(Progress(self.origin.id, "queued", position=position, eta_ms=eta_ms))

    def complete(self) -> None:
        """Send the terminal response."""
        request, now = self.request, self._clock()
        leased = request.leased_at if request.leased_at is not None else now
        first = self._tokens.first_at if self._tokens.first_at is not None else now
        end = self._end
        if end is None:
            # Cut off at its deadline, because its engine died or hangs.
            usage = Usage(self.prompt_tokens, 0, request.produced)
            end = frames.End("deadline", None, usage, milliseconds(first - leased), milliseconds(now - first))
            self._cut_call()
        assert end.reason is not None
        answer = Answer(
            finish_reason=end.reason,
            stop=end.stop,
            model=request.model,
            seed=self._seed,
            fingerprint=self._fingerprint(),
            usage=self._explained(end.usage),
            ignored=self._prepared.ignored if self._params.lenient else None,
            timings=Timings(
                queue_ms=milliseconds(leased - request.spec.arrived),
                prefill_ms=round(end.prefill_ms, 3),
                ttft_ms=milliseconds(first - request.spec.arrived),
                decode_ms=round(end.decode_ms, 3),
                total_ms=milliseconds(now - request.spec.arrived),
            ),
        )
        if self._streams:
            answer = structs.replace(answer, chunks=self._responder.chunks)
        else:
            pieces, params = self._pieces, self._params
            answer = structs.replace(
                answer,
                text=pieces.text,
                reasoning=pieces.reasoning or None,
                tool_calls=pieces.calls or None,
                tokens=pieces.tokens if params.return_tokens else None,
                logprobs=None if params.logprobs is None else pieces.logprobs,
            )
        self._responder.result(answer)

    def _explained(self, usage: Usage) -> Usage:
        """Return the usage with the reason why not more of the prompt was cached, and count it."""
        messages, tokens = self._params.messages or [], self._prepared.tokens
        answered = Answered(self.origin, self.request.model, self._engine, self._namespace, tokens, messages)
        usage = self._explain(answered, usage)
        if usage.parted is not None and usage.parted.reason not in MOSTLY_NEW:
            self._latencies.read_again[usage.parted.reason] += usage.parted.tokens
        return usage

    def _cut_call(self) -> None:
        """Mark a call that will not go on as incomplete."""
        if self._open_call is not None:
            calls: list[frames.CallDelta | str] = [frames.CallDelta(self._open_call, invalid="arguments", ended=True)]
            extra = frames.Extra(calls=calls)
            self.add(frames.RequestUpdate(self.request.key, self.sequence or 0, "", 0, self.prompt_tokens, extra))

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        if reason == "cancelled" and self._streams:
            data = {**data, "chunks": self._responder.chunks}
        self._responder.error(RpcError(reason, started=self.begun, **data))


def seed_of(params: InferParams, index: int = 0) -> int:
    """Return the seed of an answer: the one given, or a random one, and its index."""
    seed = params.seed
    if seed is None:
        # The same request has the same answer.
        seed = 0 if params.reproducible else int.from_bytes(os.urandom(8), "little")
    return (seed + index) % SEEDS


def namespace_of(origin: CallOrigin, salt: str | None) -> str:
    """Return the name under which cells are cached."""
    return f"{origin.identity.namespace}:{salt or ''}"


def _namespace(params: InferParams, origin: CallOrigin, group: int | None) -> str | None:
    """Return the name of the cached cells that a request uses; several answers without any use their own."""
    if params.cache_prompt:
        return namespace_of(origin, params.cache_salt)
    return None if group is None else f"answers {group}"


def milliseconds(seconds: float) -> float:
    """Return seconds in milliseconds."""
    return round(seconds * 1000, 3)
