"""Yielding: the prompts that wait in their engine while short answers of accounts behind theirs are written."""

from collections import defaultdict
from collections.abc import Iterable

from car_daemon.scheduler.account import TURN, Account
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.order import Charging
from car_daemon.scheduler.request import Action, Decisions, Request, RequestTable, SendYield, State

_NONE = frozenset[int]()


class Yielding:
    """The prompts of each engine that yield to short answers.

    A lease says who runs, but not who waits inside a step: there a long prompt makes the answers of all others slow. So
    a prompt yields to an answer in its first turn, if the account of the answer is a turn or more behind its own, at
    the first level at which the two differ, and its class is not lower. The answer brings its account closer with each
    token, so a prompt waits until others had what its account had, and no longer.

    A step may read a prompt whole, so a prompt yields to other users from its lease on. To apps of its own user it
    yields once a step has left a rest of it: the rows that it leaves empty would cost that user's own work.
    """

    def __init__(self, gate: Gate, table: RequestTable, charging: Charging, decisions: Decisions) -> None:
        self._gate = gate
        self._charging = charging
        self._table = table
        self._decisions = decisions
        self._told: dict[int, frozenset[int]] = {}  # keys by engine
        self._reads = set[int]()  # the engines whose step reads a prompt

    def __repr__(self) -> str:
        return f"<Yielding {sum(map(len, self._told.values()))} prompts>"

    def reads(self, engine: int) -> None:
        """Note that the step of an engine reads a prompt."""
        self._reads.add(engine)

    def begin(self, prompt: Request, engine: int) -> list[Action]:
        """Return the change when a request without a token gets a lease."""
        told = self._told.get(engine, _NONE)
        _, answers = self._at_work(engine)
        return self._tell(engine, told, told | _yielding([prompt], answers, levels=1))

    def plan(self, engine: int) -> list[Action]:
        """Return the change after a step of an engine."""
        told = self._told.pop(engine, _NONE)
        if not told and engine not in self._reads:
            return []  # answers alone yield to nobody
        self._reads.discard(engine)
        return self._tell(engine, told, _yielding(*self._at_work(engine)))

    def _tell(self, engine: int, told: frozenset[int], yielding: frozenset[int]) -> list[Action]:
        """Return the change for an engine that was told other prompts."""
        if yielding:
            self._told[engine] = yielding
        if yielding == told:
            return []
        if self._decisions.sink is not None:
            for key in yielding - told:
                self._decisions.sink("yield", self._table.requests[key], "short answers of accounts behind it")
        return [SendYield(sorted(yielding), engine)]

    def _at_work(self, engine: int) -> tuple[list[Request], list[Request]]:
        """Return the running requests of an engine that have no token yet, and the requests in their first turn."""
        prompts, answers = list[Request](), list[Request]()
        for key in self._gate.leased_keys(engine):
            request = self._table.requests.get(key)
            if request is None or request.state is not State.RUNNING:
                continue
            if not request.produced:
                prompts.append(request)
            elif request.produced < TURN:
                answers.append(request)
        if prompts and answers:
            self._charging.settle()
        return prompts, answers

    def lost(self, engine: int) -> None:
        """Forget an engine."""
        self._told.pop(engine, None)
        self._reads.discard(engine)


def _yielding(prompts: Iterable[Request], answers: Iterable[Request], levels: int | None = None) -> frozenset[int]:
    """Return the keys of the prompts whose account is a turn ahead of that of an answer of no lower class.

    With `levels` the accounts of so many levels count, from the users on; else all accounts do.
    """
    # By level, the accounts whose answers are written, each with its most urgent rank.
    writing: defaultdict[Account | None, dict[Account, int]] = defaultdict(dict)
    for answer in answers:
        for account in _chain(answer)[:levels]:
            level = writing[account.parent]
            level[account] = min(answer.parking.rank, level.get(account, answer.parking.rank))

    def yields(prompt: Request) -> bool:
        return any(
            account.time - sibling.time >= TURN and rank <= prompt.parking.rank
            for account in _chain(prompt)[:levels]
            if account.parent in writing
            for sibling, rank in writing[account.parent].items()
            if sibling is not account
        )

    return frozenset(prompt.key for prompt in prompts if yields(prompt))


def _chain(request: Request) -> list[Account]:
    return [] if request.label is None else request.label.chain
