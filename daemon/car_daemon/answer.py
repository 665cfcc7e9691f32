"""One request's answer as it grows: its prompt once prepared, its text, its timings."""

import os
from collections.abc import Callable

from msgspec import UNSET, structs

from car_daemon.engine import frames
from car_daemon.engine.batching.adapter_turns import AdapterSet
from car_daemon.engine.grammar.why import TOO_COMPLEX
from car_daemon.latencies import Latencies, TokenClock
from car_daemon.pending import Owner, Reply
from car_daemon.scheduler.request import Failure, Request
from car_protocol.answer import Answer, Progress, Timings, Usage
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.sampling import Sampling

_MAX_SEED = 2**32 - 1


def request_of(params: InferParams, owner: Owner, key: int, model: str, *, size: int, now: float) -> Request:
    """Return what the scheduler has to know of a request of `size` bytes that came `now`."""
    return Request(
        key,
        model,
        arrived=now,
        client=(owner.uid, params.client if params.client is not None else owner.pid),
        process=owner.pid,
        size=size,
        priority=params.priority,
        wait=params.wait,
        queue=params.queue,
        supersede=None if params.supersede is None else (owner.connection, params.supersede),
        progress=params.progress,
        device=params.device,
        session=None if params.session is None else (owner.uid, params.session),
        timeout=_seconds(params.timeout_ms),
        queue_timeout=_seconds(params.queue_timeout_ms),
    )


class GrowingAnswer:
    """What a client asked and what it gets; times in seconds of `clock`."""

    def __init__(
        self,
        request: Request,
        params: InferParams,
        owner: Owner,
        reply: Reply,
        *,
        streams: bool,
        latencies: Latencies,
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self.owner = owner
        self.params = params
        self._reply = reply
        self._streams = streams
        self._clock = clock
        self.seed = params.seed if params.seed is not None else int.from_bytes(os.urandom(8), "little") % _MAX_SEED
        self._latencies = latencies
        # Mutable state: the prepared form, what was produced, how far the engine is and how it ended.
        self._prepared = frames.Prepared(request.key, b"", 0)
        self._texts: list[str] = []
        self._extras: list[frames.Extra] = []
        self._tokens = TokenClock(latencies, request.arrived, clock)
        self.sequence: int | None = None
        self._end: frames.End | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prepared prompt."""
        return len(self._prepared.tokens) // 4

    @property
    def failure(self) -> Failure | None:
        """The error that the engine ended it with."""
        match self._end and self._end.fault:
            case None:
                return None
            case "image":
                return Failure("invalid_params", {"param": "messages"})
            case "constraint":
                bound_by = [name for name in ("grammar", "json_schema") if getattr(self.params, name) is not None]
                return Failure("invalid_params", {"param": [*bound_by, "tools"][0], "why": TOO_COMPLEX})
            case _:
                return Failure("internal_error", {})

    def as_prepare(self) -> frames.Prepare:
        """Return the frame that has the prompt prepared."""
        params = self.params
        return frames.Prepare(
            key=self.request.key,
            prompt=params.prompt,
            tokens=params.tokens,
            chat=_chat(params),
            parse_special=params.parse_special,
            max_tokens=params.max_tokens,
            sampling=_sampling(params),
            grammar=params.grammar,
            json_schema=params.json_schema,
            adapters=tuple((each.name, each.scale) for each in params.lora),
        )

    @property
    def namespace(self) -> str | None:
        """Whose cached cells may be used: those of the same user and session."""
        return f"{self.owner.uid}:{self.params.session or ''}" if self.params.cache_prompt else None

    @property
    def _adapters(self) -> AdapterSet:
        """The adapters that change anything, in the order that makes equal sets equal."""
        return tuple(sorted((each.name, each.scale) for each in self.params.lora if each.scale))

    def prepared(self, message: frames.Prepared) -> None:
        """Keep the prepared form: an engine's death costs a waiting request nothing."""
        self._prepared = message

    def as_run(self) -> frames.Run:
        """Return the frame that starts the request, from its beginning."""
        self._texts.clear()
        self._extras.clear()
        self._tokens = TokenClock(self._latencies, self.request.arrived, self._clock)
        if self.request.leased_at is not None:
            self._latencies.queued.observe(self.request.leased_at - self.request.arrived)
        prepared = self._prepared
        return frames.Run(
            key=self.request.key,
            tokens=prepared.tokens,
            max_tokens=prepared.max_tokens,
            sampling=_sampling(self.params),
            seed=self.seed,
            stop=self.params.stop,
            return_tokens=self.params.return_tokens,
            logprobs=self.params.logprobs,
            constraint=prepared.constraint,
            reading=prepared.reading,
            namespace=self.namespace,
            adapters=self._adapters,
            images=prepared.images,
        )

    def take(self, row: frames.Row) -> None:
        """Take what one step brought; a stream's text goes out at once."""
        self.sequence = row.sequence
        self._end = row.end
        if self.params.progress and self._tokens.first_at is None and (row.sampled or row.end is None):
            total = self.prompt_tokens
            self._reply.progress(Progress(self.owner.id, "prefill", done=row.prompt_done, total=total))
        if row.sampled:
            self._tokens.token()
        if not self._streams:
            self._texts.append(row.text)
            if row.extra is not None:
                self._extras.append(row.extra)
        elif row.text or row.extra is not None:
            self.request.sent = True
            self._reply.chunk(row.text, row.extra)

    def queued(self, position: int, eta_ms: int | None) -> None:
        """Tell the client where its request stands in the queue."""
        self._reply.progress(Progress(self.owner.id, "queued", position=position, eta_ms=eta_ms))

    def complete(self) -> None:
        """Send the terminal response."""
        self._reply.result(self._answer())

    def fail(self, reason: str, data: dict[str, object]) -> None:
        """Send the terminal error."""
        if reason == "cancelled" and self._streams:
            data = {**data, "chunks": self._reply.chunks}
        self._reply.error(RpcError(reason, started=self._tokens.first_at is not None, **data))

    def _answer(self) -> Answer:
        end = self._end or self._cut_off()
        assert end.reason is not None
        answer = Answer(
            finish_reason=end.reason,
            stop=end.stop if end.stop is not None else UNSET,
            model=self.request.model,
            seed=self.seed,
            usage=end.usage,
            timings=self._timings(end),
        )
        if self._streams:
            return structs.replace(answer, chunks=self._reply.chunks)
        extras = self._extras
        return structs.replace(
            answer,
            text="".join(self._texts),
            reasoning="".join(extra.reasoning for extra in extras) or UNSET,
            tool_calls=[call for extra in extras for call in extra.tool_calls] or UNSET,
            tokens=[token for extra in extras for token in extra.tokens] if self.params.return_tokens else UNSET,
            logprobs=UNSET if self.params.logprobs is None else [each for extra in extras for each in extra.logprobs],
        )

    def _cut_off(self) -> frames.End:
        """Return the end of an answer at its deadline, where its engine did not get to say it."""
        request, now = self.request, self._clock()
        leased = request.leased_at if request.leased_at is not None else now
        first = self._tokens.first_at if self._tokens.first_at is not None else now
        usage = Usage(self.prompt_tokens, 0, request.produced)
        return frames.End("deadline", None, usage, _ms(first - leased), _ms(now - first))

    def _timings(self, end: frames.End) -> Timings:
        arrived = self.request.arrived
        now = self._clock()
        leased = self.request.leased_at if self.request.leased_at is not None else now
        first = self._tokens.first_at if self._tokens.first_at is not None else now
        return Timings(
            queue_ms=_ms(leased - arrived),
            prefill_ms=round(end.prefill_ms, 3),
            ttft_ms=_ms(first - arrived),
            decode_ms=round(end.decode_ms, 3),
            total_ms=_ms(now - arrived),
        )


def _sampling(params: InferParams) -> Sampling:
    return Sampling(**{name: getattr(params, name) for name in Sampling.__struct_fields__})


def _chat(params: InferParams) -> frames.Chat | None:
    if params.messages is None:
        return None
    return frames.Chat(
        messages=params.messages,
        tools=params.tools if params.tool_choice != "none" else [],
        tool_choice=params.tool_choice,
        template_args=params.template_args,
        reasoning=params.reasoning,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
