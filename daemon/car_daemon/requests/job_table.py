"""Open `tokenize` and `detokenize` calls by key and by model, and the bytes that each user has in them."""

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from car_base.ipc import frames
from car_daemon.requests.answer import Responder
from car_protocol.errors import RpcError


class Job(Struct):
    """One call, until its engine is done with it."""

    model: str
    message: frames.Tokenize | frames.Detokenize
    uid: int
    size: int  # bytes
    responder: Responder | None  # None once it was answered
    engine: int | None = None  # None while no engine of the model is up
    deaths: int = 0  # of engines that had it


class JobTable:
    """Open jobs of at most `max_bytes`, or one of each user; calls `left` with the model of each closed job."""

    def __init__(self, max_bytes: Callable[[], int], left: Callable[[str], None]) -> None:
        self._max_bytes = max_bytes
        self._left = left
        self._open: dict[int, Job] = {}  # by key
        self._models: dict[str, dict[int, Job]] = {}  # the same, by model
        self._bytes = 0  # of the open jobs
        self._by_user: Counter[int] = Counter()  # bytes of the open jobs, by user id

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

    def job(self, key: int) -> Job | None:
        """Return an open job."""
        return self._open.get(key)

    def of_model(self, model: str) -> Iterable[Job]:
        """Return the open jobs of a model, the oldest one first."""
        return self._models.get(model, {}).values()

    def of_engine(self, engine: int) -> list[Job]:
        """Return the open jobs that an engine has, the oldest one first."""
        return [job for job in self._open.values() if job.engine == engine]

    def add(self, job: Job) -> None:
        """Open a job; raises RpcError `limit`."""
        most = self._max_bytes()
        # A user without open jobs may open one, whatever others have open.
        if self._by_user[job.uid] and self._bytes + job.size > most:
            raise RpcError("limit", limit="queue_max_bytes", value=most)
        self._bytes += job.size
        self._by_user[job.uid] += job.size
        self._open[job.message.key] = self._models.setdefault(job.model, {})[job.message.key] = job

    def close(self, key: int) -> Job | None:
        """Close a job and return it; None where none of this key is open."""
        job = self._open.pop(key, None)
        if job is not None:
            self._bytes -= job.size
            self._by_user[job.uid] -= job.size
            if not self._by_user[job.uid]:
                del self._by_user[job.uid]
            same_model = self._models[job.model]
            del same_model[key]
            if not same_model:
                del self._models[job.model]
            self._left(job.model)
        return job

    def close_by(self, engine: int, key: int) -> Job | None:
        """Close a job that an engine has and return it; None where the engine has none of this key."""
        job = self._open.get(key)
        return self.close(key) if job is not None and job.engine == engine else None
