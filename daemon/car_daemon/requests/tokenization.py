"""`tokenize` and `detokenize`: calls that need an engine but no lease."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from car_base.host.event_log import log
from car_base.ipc import frames
from car_base.ipc.codec import tokens_of
from car_daemon.engines.link import Engine
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.scheduler.admission import QUARANTINED
from car_protocol.errors import RpcError
from car_protocol.limits import QUEUE_MAX_BYTES
from car_protocol.text import DetokenizeParams, Text, TokenizeParams, Tokens


class TokenizationJob(Struct):
    """One call, until its engine is done with it."""

    model: str
    message: frames.Tokenize | frames.Detokenize
    size: int  # bytes
    responder: Responder | None  # None once it was answered
    engine: int | None = None  # None while no engine of the model is up
    deaths: int = 0  # of engines that had it

    @property
    def tenant(self) -> tuple[int, str, str]:
        """Its user, process and tenant."""
        process, tenant, _ = self.message.names
        return self.message.owner, process, tenant


class JobTable:
    """Open jobs of at most `max_bytes`, or one of each tenant; calls `left` with the model of each closed job."""

    def __init__(self, max_bytes: Callable[[], int], left: Callable[[str], None]) -> None:
        self._max_bytes = max_bytes
        self._left = left
        self._open: dict[int, TokenizationJob] = {}  # by key
        self._models: dict[str, dict[int, TokenizationJob]] = {}  # the same, by model
        self._bytes = 0  # of the open jobs
        self._by_tenant: Counter[tuple[int, str, str]] = Counter()  # bytes of the open jobs

    def __len__(self) -> int:
        """Return the number of open jobs."""
        return len(self._open)

    def __repr__(self) -> str:
        return f"<JobTable {len(self._open)} open, {self._bytes} bytes>"

    def busy(self, model: str) -> bool:
        """Return whether a model has an open job."""
        return model in self._models

    def engaged(self, model: str) -> bool:
        """Return whether an engine of a model has an open job."""
        return any(job.engine is not None for job in self.of_model(model))

    @property
    def keys(self) -> list[int]:
        """The keys of the open jobs."""
        return list(self._open)

    def job(self, key: int) -> TokenizationJob | None:
        """Return an open job."""
        return self._open.get(key)

    def of_model(self, model: str) -> Iterable[TokenizationJob]:
        """Return the open jobs of a model, the oldest one first."""
        return self._models.get(model, {}).values()

    def of_engine(self, engine: int) -> list[TokenizationJob]:
        """Return the open jobs that an engine has, the oldest one first."""
        return [job for job in self._open.values() if job.engine == engine]

    def add(self, job: TokenizationJob) -> None:
        """Open a job; raises RpcError `limit`."""
        most = self._max_bytes()
        # A tenant of a process without open jobs may open one, whatever others have open.
        if self._by_tenant[job.tenant] and self._bytes + job.size > most:
            raise RpcError("limit", limit="queue_max_bytes", value=most)
        self._bytes += job.size
        self._by_tenant[job.tenant] += job.size
        self._open[job.message.key] = self._models.setdefault(job.model, {})[job.message.key] = job

    def close(self, key: int) -> TokenizationJob | None:
        """Close a job and return it; None if none of this key is open."""
        job = self._open.pop(key, None)
        if job is not None:
            self._bytes -= job.size
            self._by_tenant[job.tenant] -= job.size
            if not self._by_tenant[job.tenant]:
                del self._by_tenant[job.tenant]
            same_model = self._models[job.model]
            del same_model[key]
            if not same_model:
                del self._models[job.model]
            self._left(job.model)
        return job

    def close_by(self, engine: int, key: int) -> TokenizationJob | None:
        """Close a job that an engine has and return it; None if the engine has none of this key."""
        job = self._open.get(key)
        return self.close(key) if job is not None and job.engine == engine else None


class JobEngines:
    """The engines that are up, by model: each job is sent to one of its model, or waits for one."""

    def __init__(self) -> None:
        self._links: dict[str, dict[int, Engine]] = {}  # by model and number

    def joined(self, model: str, engine: int, link: Engine, waiting: Iterable[TokenizationJob]) -> None:
        """Add an engine, and send it the jobs of its model that wait."""
        self._links.setdefault(model, {})[engine] = link
        self.send_all(waiting)

    def left(self, engine: int) -> None:
        """Forget an engine."""
        for links in self._links.values():
            links.pop(engine, None)

    def close(self, model: str) -> None:
        """Let later jobs wait for another engine of the model."""
        self._links.pop(model, None)

    def send(self, job: TokenizationJob) -> None:
        """Send a job to an engine of its model; without one it waits."""
        links = self._links.get(job.model)
        if links:
            job.engine, link = next(iter(links.items()))
            link.send(job.message)

    def send_all(self, jobs: Iterable[TokenizationJob]) -> None:
        """Send the jobs that no engine has."""
        for job in jobs:
            if job.engine is None:
                self.send(job)


class Tokenization:
    """Calls of at most `max_bytes`, or one of each tenant; calls for a model that loads wait for its engine.

    Calls `arrived` with the model of each new call and `left` with that of each closed one.
    """

    def __init__(
        self,
        keys: Iterator[int],
        *,
        max_bytes: Callable[[], int] = lambda: QUEUE_MAX_BYTES,
        draining: Callable[[], bool] = lambda: False,
        arrived: Callable[[str], None] = lambda _: None,
        left: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._keys = keys
        self._draining = draining
        self._arrived = arrived
        self.jobs = JobTable(max_bytes, left)
        self.engines = JobEngines()

    def tokenize(
        self, model: str, params: TokenizeParams, origin: CallOrigin, responder: Responder, *, size: int = 0
    ) -> int:
        """Tokenize a text or a conversation; return the key that cancels it. Raises RpcError `draining` or `limit`."""
        key = next(self._keys)
        message = frames.Tokenize(
            key,
            params.text,
            params.add_special,
            params.parse_special,
            frames.chat_of(params),
            params.count_only,
            origin.identity.number,
            origin.names,
        )
        return self._submit(TokenizationJob(model, message, size, responder))

    def detokenize(
        self, model: str, params: DetokenizeParams, origin: CallOrigin, responder: Responder, *, size: int = 0
    ) -> int:
        """Write tokens out as text; return the key that cancels it. Raises RpcError `draining` or `limit`."""
        owner, names = origin.identity.number, origin.names
        message = frames.Detokenize(next(self._keys), params.tokens, params.special, owner, names)
        return self._submit(TokenizationJob(model, message, size, responder))

    def cancel(self, key: int, reason: str = "cancelled") -> None:
        """Answer a call with an error; it counts until its engine is done with it. Unknown keys are ignored."""
        job = self.jobs.job(key)
        if job is None or job.responder is None:
            return
        if job.engine is None:
            self.jobs.close(key)
        responder, job.responder = job.responder, None
        responder.error(RpcError(reason))

    def refuse_all(self, reason: str) -> None:
        """Answer all open calls with an error."""
        for key in self.jobs.keys:
            self.cancel(key, reason)

    # Events of engines.

    def answered(self, engine: int, message: frames.TokenIds | frames.TokensCounted | frames.PlainText) -> None:
        """Send an engine's answer to a call that it has, unless that was cancelled."""
        job = self.jobs.close_by(engine, message.key)
        if job is not None and job.responder is not None:
            job.responder.result(_result_of(message))

    def refused(self, engine: int, key: int, error: RpcError) -> bool:
        """Send an engine's refusal of a call that it has; return False if it has none of this key."""
        job = self.jobs.close_by(engine, key)
        if job is not None and job.responder is not None:
            job.responder.error(error)
        return job is not None

    def engine_ready(self, model: str, engine: int, link: Engine) -> None:
        """Send an engine the calls that wait for its model."""
        self.engines.joined(model, engine, link, self.jobs.of_model(model))

    def engine_lost(self, engine: int, suspect: int | None = None) -> None:
        """Send a dead engine's calls to another engine; one present at two deaths may have caused them: refuse it.

        A `suspect` is the key of the one call or request that the engine hung at.
        """
        self.engines.left(engine)
        lost = self.jobs.of_engine(engine)
        for job in lost:
            job.engine = None
            job.deaths += suspect is None or job.message.key == suspect
        quarantined = [job.message.key for job in lost if job.responder is None or job.deaths > 1]
        for key in quarantined:
            log.debug("tokenization.quarantined", key=key, engine=engine)
        self._fail(quarantined, "engine_lost", QUARANTINED)
        for model in {job.model for job in lost}:
            self.engines.send_all(self.jobs.of_model(model))

    def model_failed(self, model: str, data: dict[str, Any] | None = None) -> None:
        """Refuse all calls of a model that cannot be served."""
        self._fail([job.message.key for job in self.jobs.of_model(model)], "model_unavailable", data or {})

    def _submit(self, job: TokenizationJob) -> int:
        if self._draining():
            raise RpcError("draining")
        self.jobs.add(job)
        try:
            self.engines.send(job)
        except Exception:
            self.jobs.close(job.message.key)
            raise
        self._arrived(job.model)
        return job.message.key

    def _fail(self, keys: list[int], reason: str, data: dict[str, Any]) -> None:
        for key in keys:
            job = self.jobs.close(key)
            if job is not None and job.responder is not None:
                job.responder.error(RpcError(reason, **data))


def _result_of(message: frames.TokenIds | frames.TokensCounted | frames.PlainText) -> Tokens | Text:
    match message:
        case frames.TokenIds(tokens=packed):
            tokens = tokens_of(packed)
            return Tokens(tokens=tokens, count=len(tokens))
        case frames.TokensCounted(count=count):
            return Tokens(count=count)
        case frames.PlainText(text=text):
            return Text(text)
