"""The objects that all endpoints share, and an endpoint's entry in the table."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from car_client.errors import CardError, ProtocolError
from car_client.results import Model
from car_http.answering import Pace, answer
from car_http.catalogue import Catalogue, DaemonHealth
from car_http.daemon.pool import DaemonPool
from car_http.dialects.common import Caller, decode, of_texts, packed
from car_http.dialects.forms import members_and_file, request_and_files
from car_http.dialects.job import Job
from car_http.dialects.vendor_tools import each_once
from car_http.exchange import JSON, Exchange
from car_http.feeds import Feeds
from car_http.metrics import DoorMetrics
from car_http.page_view import PageViews
from car_http.problems import Problem, bad, problem_of
from car_http.shelf import Shelf
from car_protocol.text import MAX_TEXTS, Embeddings

_BUILT_IN = "guide"


class DoorContext(Struct, frozen=True):
    """The way to the daemon, and the figures of the door."""

    pool: DaemonPool
    catalogue: Catalogue
    metrics: DoorMetrics
    health: DaemonHealth
    feeds: Feeds
    views: PageViews
    shelf: Shelf
    pace: Pace = Pace()
    efforts: Mapping[str, int] = {}  # the most tokens of thoughts by effort
    any_model: bool | None = None  # None: while one model chats

    async def model(self, name: str | None) -> Model:
        """Return a model's entry, the default one without a name; raises Problem and CardError."""
        if not name:
            return await self.catalogue.default()
        found = await self.catalogue.find(name)
        if found is None:
            raise Problem(404, "model_not_found", "there is no model of this name: GET /v1/models lists them")
        return found

    async def stand_in(self) -> Model | None:
        """Return the model that answers in place of one that does not exist, None if none does; raises CardError."""
        chats = [model for model in await self.catalogue.models() if "chat" in model.can]
        # The daemon lists its built-in model beside every configured one, so it counts only while no other one chats.
        chats = [model for model in chats if model.name != _BUILT_IN] or chats
        if self.any_model is False or (self.any_model is None and len(chats) != 1):
            return None
        # Of several the default model, which the catalogue lists first, else the first one.
        return chats[0] if chats else await self.catalogue.default()


_LOG = logging.getLogger("car_http")
R = TypeVar("R", bound=Struct)
T = TypeVar("T", bound=Struct | None)
Handler = Callable[[DoorContext, Exchange, T], Awaitable[None]]
_MOST_TEXTS = 2048  # OpenAI's; clients send up to so many, the daemon takes `MAX_TEXTS` a call


class Endpoint(Struct, frozen=True):
    """A path with its method; `body` decodes what is sent there."""

    method: str
    path: str
    handler: Handler[Any]
    body: type[Struct] | None = None
    kinds: tuple[str, ...] = (JSON,)  # the content types of its answers
    queries: tuple[str, ...] = ()  # the members of its query
    local: bool = False  # the daemon has no part in its answer
    file: str = ""  # the part of a form that is a file, whose other parts are the members

    async def run(self, door: DoorContext, exchange: Exchange) -> None:
        """Answer an exchange; raises Problem and CardError."""
        with exchange.giving_way():
            door = replace(door, pool=door.pool.of(exchange.owner, exchange.give_way))
            # Without a name here: the handler drops the request once it is read.
            await self.handler(door, exchange, self.body and await _request(exchange, self.body, self.file))

    def below(self, prefix: str) -> "Endpoint":
        """Return the same endpoint at a longer path."""
        return replace(self, path=prefix + self.path)


async def _request(exchange: Exchange, kind: type[R], file: str) -> R:
    """Return a request, whose form may have files beside it, or be its members and one file; raises Problem."""
    body = await exchange.body()
    if exchange.head.form:
        content_type = exchange.head.headers["content-type"]
        if file:
            members, exchange.files = members_and_file(content_type, body, file)
            return of_texts(members, kind)
        body, exchange.files = request_and_files(content_type, body)
    return decode(body, kind)


def caller_of(exchange: Exchange) -> Caller:
    """Return the part of a request that translators read beside the body."""
    return Caller(exchange.head, exchange.key)


def generation(read: Callable[[R, Caller], Job]) -> Handler[R]:
    """Return the handler that translates a request with `read` and answers it."""

    async def handle(door: DoorContext, exchange: Exchange, request: R) -> None:
        job = read(request, caller_of(exchange))
        del request  # its values are packed in the job
        await answer_job(door, exchange, job)

    return handle


async def answer_job(door: DoorContext, exchange: Exchange, job: Job) -> None:
    """Answer a translated request with the model that it names, or the default one."""
    bound_thoughts(job.params, door.efforts)
    job.params.update(packed(job.params))
    if job.left_out:
        # What stands around a colon may be any text.
        known = each_once("another" if ":" in name else name for name in job.left_out)
        _LOG.info("left out of a request, because only its vendor's models know it: %s", ", ".join(known))
    if "model" not in job.params:
        job.writer.name_model((await door.catalogue.default()).name)
    with named_as_sent(job.members):
        if (stands_in := await fit_to_model(door, job.params, claude=job.claude)) is not None:
            job.writer.name_model(stands_in.name)
        await answer(door.pool, job, exchange, door.pace)


def bound_thoughts(params: dict[str, Any], efforts: Mapping[str, int]) -> None:
    """Bound the thoughts of a request with an effort, unless it has a bound of its own."""
    effort = params.get("template_args", {}).get("reasoning_effort")
    if isinstance(effort, str) and effort in efforts:
        params.setdefault("reasoning_tokens", efforts[effort])


@contextmanager
def named_as_sent(members: Mapping[str, str]) -> Iterator[None]:
    """Raise Problem in place of CardError, which names params by the members of the request that they come from."""
    try:
        yield
    except CardError as error:
        raise problem_of(error, members) from error


async def embedded(door: DoorContext, exchange: Exchange, params: Mapping[str, Any]) -> Embeddings:
    """Return a vector for each text of `input`, a call of the daemon after the other; raises Problem and CardError."""
    params = {**params}
    await name_model(door, params)
    texts = params["input"]
    if len(texts) > _MOST_TEXTS:
        raise bad("input", f"{len(texts)} texts, at most {_MOST_TEXTS} a request: send them in several requests")
    parts = [texts[start : start + MAX_TEXTS] for start in range(0, len(texts), MAX_TEXTS)] or [texts]
    found = [await _embedded_part(door, exchange, {**params, "input": part}) for part in parts]
    vectors = [vector for part in found for vector in part.embeddings]
    tokens = sum(part.usage.prompt_tokens for part in found)
    return replace(found[0], embeddings=vectors, usage=replace(found[0].usage, prompt_tokens=tokens))


async def _embedded_part(door: DoorContext, exchange: Exchange, params: Mapping[str, Any]) -> Embeddings:
    found = await exchange.while_connected(door.pool.result_as(Embeddings, "embed", params))
    if len(found.embeddings) != len(params["input"]):
        raise ProtocolError(f"the daemon sent {len(found.embeddings)} vectors for {len(params['input'])} texts")
    return found


async def name_model(door: DoorContext, params: dict[str, Any]) -> Model | None:
    """Name the model of params as the daemon does; return its entry, None if there is no such model."""
    name = params.get("model")
    model = await (door.catalogue.default() if name is None else door.catalogue.find(name))
    if model is not None and name not in (None, model.name, *model.aliases):
        params["model"] = model.name
    return model


async def fit_to_model(door: DoorContext, params: dict[str, Any], *, claude: bool = False) -> Model | None:
    """Fit params to their model: one that stands in for an unknown one, and thoughts only if it has them.

    Returns the model that stands in; for a name of Claude's it is the default model, which answers under that name.
    """
    model, stands_in = await name_model(door, params), None
    if model is None:
        if claude:
            model = await door.catalogue.default()
        else:
            model = stands_in = await door.stand_in()
        if model is not None:
            params["model"] = model.name
    # Agents request thoughts of every model; the daemon refuses that of a model without any.
    if params.get("reasoning") == "on" and model is not None and "thinking" not in model.can:
        del params["reasoning"]
    return stands_in
