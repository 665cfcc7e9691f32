"""A house in time: each app alone, then all apps together, on one server or on several in turn."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from car_client.carctl.bench.completions import LoadError
from car_client.carctl.bench.figures import TimedAnswer
from car_client.carctl.bench.generator import Target
from car_client.carctl.bench.house_apps import App, Call, Lane
from car_client.carctl.bench.progress import progress
from car_client.carctl.failure import explain
from car_client.errors import CardError, RequestError

Clock = Callable[[], float]
# An app whose request failed sends the next one no sooner: otherwise a server that refuses would be flooded.
_RETRY_S = 1.0
# A request that was sent in a phase may be answered this long after its end; then the app gives up.
GRACE_S = 30.0
# A model of tens of gigabytes is read from a disk within this.
_LOAD_S = 300.0

Outcome = Literal["answered", "superseded", "refused", "lost"]


class HouseServer(Struct, frozen=True):
    """A server by its name in tables; `connect` returns a connection with the label of an app."""

    name: str
    connect: Callable[[str], Awaitable[Target]]


class Sent(Struct, frozen=True):
    """A request and its outcome after `seconds`: `refused` is an error before the first piece, `lost` one after it.

    `cold` is the first one of a lane, whose instructions no cache has. `why` is the error of one that failed.
    """

    app: str
    text: str
    sent_at: float
    seconds: float
    outcome: Outcome
    answer: TimedAnswer | None = None
    cold: bool = False
    why: str | None = None


class HousePhase(Struct):
    """The requests that were sent within `seconds` from `begin`; `own_cpu` is the generator's, of one core."""

    begin: float
    seconds: float
    sent: list[Sent] = []
    own_cpu: float = 0.0

    @property
    def gone(self) -> str | None:
        """The last error if the last request of each app failed."""
        last = {each.app: each.why for each in self.sent}
        return None if None in last.values() else next(reversed(last.values()), None)


class Stay(Struct, frozen=True):
    """The phases of one server: each app alone, by name, and all together."""

    server: str
    alone: dict[str, HousePhase]
    together: HousePhase


class House:
    """Runs apps on servers. All phases of one server take `seconds`; half of this time the apps run together."""

    def __init__(
        self, servers: Sequence[HouseServer], seconds: float, seed: int = 1, clock: Clock = time.perf_counter
    ) -> None:
        self._servers = servers
        self._seconds = seconds
        self._seed = seed
        self._clock = clock
        # Texts of this run alone, so that no server has them in its cache from a run before.
        self._run = f"{secrets.token_hex(4)}-{seed}"
        self.left_out: dict[str, str] = {}  # apps that one of the servers refuses, with its reason
        self.gone: dict[str, str] = {}  # phases at whose end nothing was answered, with the last error

    async def run(self, apps: Sequence[App]) -> list[Stay]:
        """Return the phases of each server, which take turns; raises CardError if no app is answered."""
        apps = [app for app in apps if await self._is_served(app)]
        if not apps:
            raise LoadError(next(iter(self.left_out.values()), "no app was named"))
        alone: list[dict[str, HousePhase]] = [{} for _ in self._servers]
        for app in apps:
            for number, phases in enumerate(alone):
                phases[app.name] = await self._phase(number, [app], self._seconds / 2 / len(apps), f"{app.name} alone")
        return [
            Stay(self._servers[number].name, phases, await self._phase(number, apps, self._seconds / 2, "together"))
            for number, phases in enumerate(alone)
        ]

    async def _is_served(self, app: App) -> bool:
        """Send the first request of an app to each server, which loads its model."""
        for number, server in enumerate(self._servers):
            call = next(app.lanes[0](Random(self._seed), f"{self._run}-{number}-first"))
            try:
                async with asyncio.timeout(_LOAD_S), _connected(server, app) as target:
                    await _answer(target, call)
            except (LoadError, RequestError) as error:
                self.left_out[app.name] = explain(error)
                return False
            except TimeoutError:
                raise LoadError(
                    f"{server.name} did not answer within {_LOAD_S:.0f} s: is its model too large?"
                ) from None
        return True

    async def _phase(self, number: int, apps: Sequence[App], seconds: float, name: str) -> HousePhase:
        """Run apps on a server until the time is over, and wait for the answers that are due then."""
        server = self._servers[number]
        # Two of the servers may be doors to the same one, with its cache.
        session = f"{self._run}-{number}-{name}".replace(" ", "-")
        phase, cpu = HousePhase(self._clock(), seconds), time.process_time()
        async with _shown(f"{server.name}: {name}", seconds), asyncio.TaskGroup() as tasks:
            for app in apps:
                for place, lane in enumerate(app.lanes):
                    # The same requests in each phase, but for the name of the session.
                    chance = Random(f"{self._seed} {app.name} {place}")
                    tasks.create_task(self._live(server, app, lane(chance, session), chance.random(), phase))
        if (gone := phase.gone) is not None:
            self.gone[f"{server.name}, {name}"] = gone
        phase.own_cpu = (time.process_time() - cpu) / max(self._clock() - phase.begin, seconds)
        return phase

    async def _live(self, server: HouseServer, app: App, lane: Lane, start: float, phase: HousePhase) -> None:
        """Send the requests of a lane: the first one after a part of its pause, but within the phase."""
        end = phase.begin + phase.seconds
        call = next(lane)
        due = phase.begin + start * min(app.every_s or call.pause_s, phase.seconds)
        cold = True
        try:
            async with _connected(server, app) as target:
                while due < end:
                    await asyncio.sleep(due - self._clock())
                    sent = await self._send(target, app, call, end)
                    phase.sent.append(replace(sent, cold=cold))
                    cold = False
                    call = lane.send(sent.answer.text if sent.answer else None)
                    failed = sent.outcome in ("refused", "lost")
                    ended = sent.sent_at + sent.seconds
                    pause = max(call.pause_s, _RETRY_S if failed else 0.0)
                    due = ended + pause if app.every_s is None else sent.sent_at + app.every_s
        except CardError as error:  # of the connection: a request's own is its outcome
            phase.sent.append(Sent(app.name, call.text, self._clock(), 0.0, "refused", cold=cold, why=explain(error)))

    async def _send(self, target: Target, app: App, call: Call, end: float) -> Sent:
        sent_at, started = self._clock(), asyncio.Event()
        answer: TimedAnswer | None = None
        outcome: Outcome
        why: str | None = None
        try:
            async with asyncio.timeout(app.every_s or end + GRACE_S - sent_at):
                answer = await _answer(target, call, started)
            outcome = "answered"
        except CardError as error:
            outcome, why = "lost" if started.is_set() else "refused", explain(error)
        except TimeoutError:
            outcome, why = ("superseded", None) if app.every_s else ("lost", "no answer came in time")
        return Sent(app.name, call.text, sent_at, self._clock() - sent_at, outcome, answer, why=why)


async def _answer(target: Target, call: Call, started: asyncio.Event | None = None) -> TimedAnswer:
    if "max_tokens" in call.params:
        return await target.stream(call.params, started)
    return await target.whole(call.params)


@asynccontextmanager
async def _connected(server: HouseServer, app: App) -> AsyncIterator[Target]:
    target = await server.connect(app.name)
    try:
        yield target
    finally:
        await target.aclose()


@asynccontextmanager
async def _shown(title: str, seconds: float) -> AsyncIterator[None]:
    """Show a bar that is full after `seconds`; without one the title, because the table comes after minutes."""

    async def count() -> None:
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            tick()

    with progress(title, int(seconds), lines=True) as tick:
        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            counting.cancel()
