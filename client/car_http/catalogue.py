"""What all clients read alike: the daemon's models, and whether it answers, as of the last seconds."""

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from car_client.errors import CardError, ProtocolError
from car_client.results import Model, ModelDetails
from car_http.daemon.pool import DaemonPool
from car_protocol.models import ModelFile

_FRESH_S = 2.0
LATEST = ":latest"


class _Models(Struct):
    models: list[Model]


class Catalogue:
    """The entries of `models/list`; requests at once share one call."""

    def __init__(self, pool: DaemonPool) -> None:
        self._pool = pool
        self._models: list[Model] = []
        self._until = 0.0  # when the entries are read again
        self._lock = asyncio.Lock()
        self._files: dict[tuple[str, int | None], ModelFile | None] = {}  # by path and size, which change with a file

    async def models(self) -> list[Model]:
        """Return the entries, the default one first; raises CardError."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._models = (await self._pool.result_as(_Models, "models/list", {})).models
                self._until = time.monotonic() + _FRESH_S
            return self._models

    async def find(self, name: str) -> Model | None:
        """Return the entry with this name or alias, None if there is none now; raises CardError."""
        if (found := _named(await self.models(), name)) is None:
            self.forget()  # the model may be new
            found = _named(await self.models(), name)
        return found

    async def default(self) -> Model:
        """Return the default model's entry; raises CardError."""
        models = await self.models()
        if not models:
            raise ProtocolError("the daemon lists no models, and a daemon has one at least")
        return next((each for each in models if each.default), models[0])

    async def files(self) -> dict[str, ModelFile | None]:
        """Return the facts of the entries' files by name, None if a file cannot be read; raises CardError."""
        places = {model.name: (model.path, model.size_bytes) for model in await self.models()}
        self._files = {place: file for place, file in self._files.items() if place in places.values()}
        for name, place in places.items():
            if place not in self._files:
                self._files[place] = (await self._pool.result_as(ModelDetails, "models/show", {"model": name})).file
        return {name: self._files.get(place) for name, place in places.items()}

    def forget(self) -> None:
        """Read the entries again at the next call."""
        self._until = 0.0


def _named(models: Sequence[Model], name: str) -> Model | None:
    """Return the entry of a name: as it is, without the tag that Ollama's clients add, or with that tag."""
    for tried in (name, name.removesuffix(LATEST), name + LATEST):
        if found := next((each for each in models if tried == each.name or tried in each.aliases), None):
            return found
    return None


# The promise of `GET /health`: its answer is at most this old, and the daemon gets at most one call in this time.
FRESH_S = 1.0


class DaemonHealth:
    """The outcome of the newest call to the daemon; requests at once share one call."""

    def __init__(self, pool: DaemonPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._error: CardError | None = None
        self._until = float("-inf")  # when the daemon is called again
        self._lock = asyncio.Lock()

    async def error(self) -> CardError | None:
        """Return the error of a daemon that does not answer, None while it does."""
        async with self._lock:
            if self._clock() >= self._until:
                self._error = await self._call()
                self._until = self._clock() + FRESH_S
            return self._error

    async def _call(self) -> CardError | None:
        try:
            await self._pool.result("inference/capacity", {})
        except CardError as error:
            return error
        return None
