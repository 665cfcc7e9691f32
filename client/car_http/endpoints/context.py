"""The objects that all endpoints share, and an endpoint's entry in the table."""

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from car_client.results import Model
from car_http.answering import Pace, answer
from car_http.catalogue import Catalogue
from car_http.daemon.pool import DaemonPool
from car_http.dialects.common import Caller
from car_http.dialects.job import Job
from car_http.exchange import Exchange
from car_http.metrics import Metrics
from car_http.problems import Problem


class DoorContext(Struct, frozen=True):
    """The way to the daemon, and the figures of the door."""

    pool: DaemonPool
    catalogue: Catalogue
    metrics: Metrics
    pace: Pace = Pace()

    async def model(self, name: str | None) -> Model:
        """Return a model's entry, the default one without a name; raises Problem and CardError."""
        if not name:
            return await self.catalogue.default()
        found = await self.catalogue.find(name)
        if found is None:
            raise Problem(404, "model_not_found", "there is no model of this name: GET /v1/models lists them")
        return found


Path = Mapping[str, str]
Handler = Callable[[DoorContext, Exchange, Path], Awaitable[None]]
NO_MEMBERS: Mapping[str, str] = {}


class Endpoint(Struct, frozen=True):
    """A path with its method; `members` names the daemon's params as the dialect does, for errors."""

    method: str
    path: str
    handler: Handler
    members: Mapping[str, str] = NO_MEMBERS


def caller_of(exchange: Exchange) -> Caller:
    """Return the part of a request that translators read beside the body."""
    return Caller(exchange.head, exchange.key)


def generation(read: Callable[[bytes, Caller], Job]) -> Handler:
    """Return the handler that translates a body with `read` and answers it."""

    async def handle(door: DoorContext, exchange: Exchange, path: Path) -> None:
        job = read(await exchange.body(), caller_of(exchange))
        await answer(door.pool, await _named(door, job), exchange, door.pace)

    return handle


async def _named(door: DoorContext, job: Job) -> Job:
    """Return the job with the model that answers it: the default one where none, or any, is named."""
    name = job.params.get("model")
    if name is None:
        job.writer.name_model((await door.catalogue.default()).name)
    elif job.any_model and await door.catalogue.find(name) is None:
        del job.params["model"]
    return job
