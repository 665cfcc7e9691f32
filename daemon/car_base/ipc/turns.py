"""Jobs of one thread in a fair order: users take turns by time, and so do a user's processes, tenants and labels."""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from car_protocol.limits import MAX_CONNECTIONS

T = TypeVar("T")
# Within this time of each other, users take turns by the length of their jobs.
_BOUND_S = 0.25
# As many children of an account as there may be connections. A child that is forgotten loses its lead alone.
_MOST_AWAY = MAX_CONNECTIONS
Name = Hashable
# A user, and below it its process, tenant and label.
Path = tuple[Name, ...]


class TurnAccount(Generic[T]):
    """A user, process, tenant or label: the seconds of its jobs, and what waits: its children, or at a label jobs."""

    __slots__ = ("away", "jobs", "longest", "part", "served", "time", "waiting")

    def __init__(self) -> None:
        self.time = 0.0
        self.longest = 0.0  # seconds of its longest job, halved with each later job
        self.served = 0.0  # the time of the child that was served last
        self.part = 0.0  # the seconds of each child if all that waited had got an equal part
        self.waiting: dict[Name, TurnAccount[T]] = {}  # children with jobs
        self.away: dict[Name, TurnAccount[T]] = {}  # children without jobs, the child that left last at the end
        self.jobs: deque[T] = deque()

    def joined(self, name: Name) -> "TurnAccount[T]":
        """Return a child that has jobs from now on."""
        child = self.waiting.get(name)
        if child is None:
            child = self.waiting[name] = self.away.pop(name) if name in self.away else TurnAccount()
            longest = max(each.longest for each in self.waiting.values())
            child.time = max(child.time, self.served, self.part - longest)
        return child

    def next(self) -> Name:
        """Return the child whose turn it is."""
        self.served = min(child.time for child in self.waiting.values())
        self.part = max(self.part, self.served)
        near = ((child.longest, name) for name, child in self.waiting.items() if child.time <= self.served + _BOUND_S)
        return min(near, key=lambda each: each[0])[1]

    def leave(self, name: Name) -> None:
        """Note that a child has no more jobs: it forgets its children, and of many children the first is forgotten."""
        self.away[name] = child = self.waiting.pop(name)
        child.away.clear()
        if len(self.away) > _MOST_AWAY:
            del self.away[next(iter(self.away))]


class Turns(Generic[T]):
    """Queued jobs, one user after the other: the user whose jobs took the least time goes first.

    Of users whose times differ little, the user of short jobs goes first: a job that runs cannot be interrupted, so a
    short job waits for the one that runs, and not for all long jobs. A user who comes back has the time of the user
    that was served last at least: it saves no turns while it is away. Its time is at most one longest job below an
    equal part of all jobs, so that new users overtake nobody for ever. The processes of a user take turns in the same
    way, and so do the tenants of a process and the labels of a tenant.
    """

    def __init__(self) -> None:
        self._root = TurnAccount[T]()

    def __repr__(self) -> str:
        return f"<Turns of {len(self._root.waiting)} users, {self._root.part:g} s>"

    @property
    def empty(self) -> bool:
        """No job waits."""
        return not self._root.waiting

    def add(self, path: Path, job: T) -> None:
        """Queue a job."""
        account = self._root
        for name in path:
            account = account.joined(name)
        account.jobs.append(job)

    def take(self) -> T:
        """Return and remove the job whose turn it is."""
        account, chain = self._root, list[tuple[TurnAccount[T], Name]]()
        while account.waiting:
            name = account.next()
            chain.append((account, name))
            account = account.waiting[name]
        job = account.jobs.popleft()
        for parent, name in reversed(chain):
            if account.jobs or account.waiting:
                break
            parent.leave(name)
            account = parent
        return job

    def charge(self, path: Path, seconds: float) -> None:
        """Count the time of the job that was taken last, also if it was queued again."""
        account = self._root
        for name in path:
            child = account.waiting.get(name) or account.away.get(name)
            if child is None:
                break
            account.part += seconds / max(1, len(account.waiting))
            account = child
            account.time += seconds
            account.longest = max(seconds, account.longest / 2)
