"""The tokenizer thread's inbox and the order of its jobs; a job that is forgotten while it waits is not done."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from threading import Lock

from car_base.ipc.frames import Detokenize, FromEngine, Prepare, PrepareDecision, PrepareTexts, Tokenize
from car_base.ipc.inbox import Inbox

Steps = Generator[None, None, FromEngine]  # the work of a long job in steps, and its answer
Job = Prepare | PrepareDecision | PrepareTexts | Tokenize | Detokenize
# Within this time of each other, users take turns by the length of their jobs.
_BOUND_S = 0.25


@dataclass(slots=True)
class QueuedJob:
    """A job, the bytes of the frame in which it came, and the uid of its user."""

    job: Job | None  # None once it is forgotten, which the intake thread notes: its text is freed before its turn
    size: int
    owner: int
    steps: Steps | None = None  # the steps that are left, if the job was begun


class Jobs(Inbox[QueuedJob]):
    """Jobs from their arrival until they are done.

    A request that was forgotten may come again, because another engine was to prepare it: the new job is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._open: dict[int, QueuedJob] = {}  # by key

    def put(self, command: QueuedJob) -> None:
        """Add a job; never blocks."""
        if command.job is not None:
            with self._lock:
                self._open[command.job.key] = command
        super().put(command)

    def forget(self, key: int) -> None:
        """Spare the thread a job that is queued; one that it does now is undone by the thread itself."""
        with self._lock:
            if (queued := self._open.pop(key, None)) is not None:
                queued.job = None

    def done(self, queued: QueuedJob) -> None:
        """Remove a job that can be forgotten no more."""
        with self._lock:
            if queued.job is not None and self._open.get(queued.job.key) is queued:
                del self._open[queued.job.key]


@dataclass(slots=True)
class _User:
    """The seconds that a user's jobs took, and its jobs that wait, in the order of their arrival."""

    time: float
    longest: float = 0.0  # seconds of its longest job, halved with each later one
    jobs: deque[QueuedJob] = field(default_factory=deque)


class Turns:
    """Queued jobs, one user after the other: the user whose jobs took the least time goes first.

    Of users whose times differ little, the user of short jobs goes first: a job that runs cannot be interrupted, so a
    short job waits for the one that runs, and not for all long jobs. A user who comes back has the time of the user
    that was served last at least: it saves no turns while it is away.
    """

    def __init__(self) -> None:
        self._users: dict[int, _User] = {}  # by uid
        self._waiting: dict[int, _User] = {}  # those with jobs
        self._clock = 0.0  # the time of the user that was served last

    def __repr__(self) -> str:
        return f"<Turns of {len(self._waiting)} users, {self._clock:g} s>"

    @property
    def empty(self) -> bool:
        """No job waits."""
        return not self._waiting

    def add(self, queued: QueuedJob) -> None:
        """Queue a job."""
        user = self._users.setdefault(queued.owner, _User(self._clock))
        if not user.jobs:
            user.time = max(user.time, self._clock)
            self._waiting[queued.owner] = user
        user.jobs.append(queued)

    def take(self) -> QueuedJob:
        """Return and remove the job whose turn it is."""
        self._clock = min(user.time for user in self._waiting.values())
        near = ((user.longest, uid) for uid, user in self._waiting.items() if user.time <= self._clock + _BOUND_S)
        _, uid = min(near, key=lambda each: each[0])
        user = self._waiting[uid]
        queued = user.jobs.popleft()
        if not user.jobs:
            del self._waiting[uid]
        return queued

    def charge(self, uid: int, seconds: float) -> None:
        """Count the time of a user's job."""
        user = self._users[uid]
        user.time += seconds
        user.longest = max(seconds, user.longest / 2)
