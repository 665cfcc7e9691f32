"""The tokenizer thread's inbox: jobs in order; a job whose request is forgotten while it is queued is not done."""

from dataclasses import dataclass
from threading import Lock

from car_daemon.ipc.frames import Detokenize, Prepare, PrepareTexts, Tokenize
from car_daemon.ipc.inbox import Inbox

Job = Prepare | PrepareTexts | Tokenize | Detokenize


@dataclass(slots=True)
class QueuedJob:
    """A job, and the bytes of the frame in which it came."""

    job: Job
    size: int
    wanted: bool = True  # cleared by the intake thread


class Jobs(Inbox[QueuedJob]):
    """Jobs from their arrival until they are done.

    A request that was forgotten may come again, because another engine was to prepare it: the new job is wanted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._open: dict[int, QueuedJob] = {}  # by key

    def put(self, command: QueuedJob) -> None:
        """Add a job; never blocks."""
        with self._lock:
            self._open[command.job.key] = command
        super().put(command)

    def forget(self, key: int) -> None:
        """Spare the thread a job that is queued; one that it does now is undone by the thread itself."""
        with self._lock:
            if (queued := self._open.pop(key, None)) is not None:
                queued.wanted = False

    def done(self, queued: QueuedJob) -> None:
        """Remove a job that can be forgotten no more."""
        with self._lock:
            if self._open.get(queued.job.key) is queued:
                del self._open[queued.job.key]
