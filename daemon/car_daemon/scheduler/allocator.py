"""Allocation: leases for waiters, room for requests held back, parkings, and positions."""

from car_daemon.scheduler.actions import Action, Prepare, Resume, Run
from car_daemon.scheduler.admission import Admission
from car_daemon.scheduler.books import Books
from car_daemon.scheduler.eta import Positions
from car_daemon.scheduler.request import Request, State


class Allocator:
    """Gives free sequences to waiters after every event."""

    def __init__(self, books: Books, admission: Admission) -> None:
        self._books = books
        self.positions = Positions(books.waiting, books.rate, books.gate)
        self._admission = admission

    def allocate(self, now: float, prepared: Request | None = None) -> list[Action]:
        """Lease free sequences, let in requests held back, park for urgent waiters, report positions.

        A request that was `prepared` now begins to wait, or gets its lease at once where nothing waits.
        """
        books = self._books
        waiting, actions = books.waiting, list[Action]()
        if prepared is not None:
            engine = waiting.lease_at_once(prepared, books.gate, now)
            if engine is not None:
                actions.append(self._start(prepared, engine, now))
            else:
                books.table.assign(prepared, None)
                waiting.add(prepared, now)
        grants = books.parkings.grants
        if waiting.requests:
            actions += [self._start(*lease, now) for lease in waiting.leases(books.gate, now, grants)]
        if grants:
            grants.clear()
        if books.backlog.held_back:
            actions += self._admission.let_in(now)
        if waiting.touched or self._is_due(now):
            if waiting.requests:
                actions += books.parkings.plan(now)
                actions += self.positions.plan(now)
            else:
                books.parkings.none_waits()
            waiting.planned()
        return actions

    def _is_due(self, now: float) -> bool:
        """Return True if parkings or positions are to be planned now though nothing changed."""
        look = self._books.parkings.next_look
        return (look is not None and look <= now) or (bool(self.positions.owed) and self.positions.is_due(now))

    def _start(self, request: Request, engine: int, now: float) -> Action:
        """Run or resume a request by its lease; one whose images another engine has encoded is prepared there first."""
        books = self._books
        if request.images_at not in (None, engine) and request.state is State.WAITING and not request.images_moved:
            return self._move(request, engine)
        parked = request.state is State.PARKED
        books.backlog.leave(request)
        request.move(State.RUNNING)
        books.table.assign(request, engine)
        if request.leased_at is None:
            request.leased_at = now
            if request.limited:
                books.table.limit(request)
        books.parkings.started(request, now)
        if books.decisions.sink is not None:
            aged = "aged, " if books.waiting.aged(request, now) else ""
            passed = f", passed by {request.passed} with resident prompts" if request.passed else ""
            why = f"{aged}waited {now - request.waits_since:.3f} s, {len(books.waiting.requests)} still wait{passed}"
            books.decisions.sink("resume" if parked else "lease", request, why)
        if parked:
            return Resume(request.key, engine)
        books.charging.started(request, books.gate.prompt_share(engine))
        return Run(request, engine)

    def _move(self, request: Request, engine: int) -> Action:
        """Return a lease, which would wait for the projector, until the engine has encoded the request's images.

        A second time they are encoded under the lease, so that a request cannot move for ever.
        """
        books = self._books
        books.gate.release(engine, request.key)
        books.waiting.returned(request)
        if request.leased_at is None and request.account is not None:
            request.account.let_go()
            request.account = None
        books.parkings.left(request)
        request.images_moved = True
        request.move(State.ACCEPTED)
        request.move(State.PREPARING)
        books.table.assign(request, engine)
        if books.decisions.sink is not None:
            books.decisions.sink("prepare", request, f"engine {request.images_at} encoded its images, not {engine}")
        return Prepare(request, engine)
