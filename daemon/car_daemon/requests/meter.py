"""The meter of the ledger: what engines and the scheduler report about requests, added to the sums of their rows."""

from msgspec import Struct

from car_base.ipc import frames
from car_daemon.ledger.sums import Sums
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, PendingAnswer
from car_daemon.scheduler.state import Outcome
from car_protocol.usage import Amounts

# The part that a request has in a step without tokens of it, such as its end: next to nothing beside any token.
_NO_TOKENS = 1e-6


class Tab(Struct, frozen=True, gc=False):
    """Where the work of a request counts, and what a prompt token costs in answer tokens."""

    identity: str
    app: str
    model: str
    prompt_share: float


class Meter:
    """Counts while it is `on`; a request's tab is open until its engine is done with it, also after its answer."""

    def __init__(self, sums: Sums) -> None:
        self.on = False
        self._sums = sums
        self._tabs: dict[int, dict[int, Tab]] = {}  # by engine and key

    def __repr__(self) -> str:
        return f"<Meter on={self.on}, {sum(map(len, self._tabs.values()))} tabs>"

    def leased(self, answer: PendingAnswer, engine: int, now: float) -> None:
        """Count the wait of a request for its lease, and its work from now on."""
        request, origin = answer.request, answer.origin
        tab = Tab(origin.identity.name, _app(origin), request.model, request.prompt_share)
        self._tabs.setdefault(engine, {})[request.key] = tab
        self._row(tab).waited_s += max(0.0, now - request.waits_since)

    def step(self, engine: int, step: frames.StepDone) -> None:
        """Count the work of a step."""
        tabs = self._tabs.get(engine, {})
        parts: list[tuple[Amounts, float]] = []
        for update in step.updates:
            tab = tabs.get(update.key)
            if tab is None:
                continue
            row = self._row(tab)
            row.cached_tokens += update.cached
            row.computed_tokens += update.computed
            row.completion_tokens += update.sampled
            self._sums.spend(tab.identity, update.computed + update.sampled)
            parts.append((row, update.computed * tab.prompt_share + update.sampled or _NO_TOKENS))
            if update.end is not None:
                del tabs[update.key]
        whole = sum(part for _, part in parts)
        for row, part in parts if step.seconds else ():
            row.device_s += step.seconds * part / whole

    def ended(self, answer: PendingAnswer, outcome: Outcome, now: float) -> None:
        """Count a request that has its answer."""
        request, origin = answer.request, answer.origin
        row = self._sums.row(origin.identity.name, _app(origin), request.model)
        setattr(row, outcome, getattr(row, outcome) + 1)
        row.prompt_tokens += answer.prompt_tokens
        if request.leased_at is None:
            row.waited_s += max(0.0, now - request.spec.arrived)
        if outcome == "completed":
            row.decisions += answer.decisions
            row.texts += answer.texts

    def refused(self, identity: Identity) -> None:
        """Count a request that was refused before it had a model."""
        self._sums.row(identity.name, "", "").rejected += 1

    def engine_lost(self, engine: int) -> None:
        """Close the tabs of an engine."""
        self._tabs.pop(engine, None)

    def _row(self, tab: Tab) -> Amounts:
        return self._sums.row(tab.identity, tab.app, tab.model)


def _app(origin: CallOrigin) -> str:
    return origin.client or origin.tenant
