"""The tokenizer thread's inbox; a job that is forgotten while it waits is not done."""

from collections.abc import Generator
from dataclasses import dataclass
from threading import Lock

from car_base.ipc.frames import Detokenize, FromEngine, Prepare, PrepareDecision, PrepareTexts, Tokenize
from car_base.ipc.inbox import Inbox
from car_base.ipc.turns import Path

Steps = Generator[None, None, FromEngine]  # the work of a long job in steps, and its answer
Job = Prepare | PrepareDecision | PrepareTexts | Tokenize | Detokenize


@dataclass(slots=True)
class QueuedJob:
    """A job, the bytes of the frame in which it came, and whose it is."""

    job: Job | None  # None once it is forgotten, which the intake thread notes: its text is freed before its turn
    size: int
    path: Path
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
