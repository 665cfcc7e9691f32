"""Ollama's requests that change models, and the lines that show how far they are."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from car_client.carctl.adopt.candidates import KEYS
from car_http.dialects.common import refuse
from car_http.problems import bad
from car_http.shelf import Copied
from car_protocol.meta import note

_REFUSED = {
    "files": "files are not sent here: `carctl models add PATH` adds a model of this machine",
    "adapters": "requests name adapters: configure them in `adapters` of the model, and send `card.lora`",
    "messages": "a model has no messages of its own: send them with each request, or put them into `system`",
    "quantize": "files stay as they are: pull one of the quantization that you want",
    "modelfile": "send its parts: `from`, `system`, `template`, `parameters`",
    "path": "send the parts of the file: `from`, `system`, `template`, `parameters`",
}
_PARAMETERS = {**KEYS, "num_ctx": "context_tokens"}
_JINJA = ("{%", "messages")  # what Ollama's own templates, which are Go's, do not have
_MB = 1_000_000


class Named(Struct, kw_only=True):
    """A model's name; both members name it."""

    model: str | None = None
    name: str | None = None

    @property
    def named(self) -> str:
        """The name; raises Problem."""
        if name := self.model or self.name:
            return name
        raise bad("model", "give the name of a model: GET /api/tags lists them")


class Streamed(Named, kw_only=True):
    """A name, and whether lines show how far the change is."""

    stream: bool | None = None


class CopyRequest(Struct, kw_only=True):
    """The body of `/api/copy`."""

    source: str
    destination: str


class CreateRequest(Streamed, kw_only=True):
    """The body of `/api/create`; members that it does not name are dropped."""

    from_: Annotated[str | None, note("a model that is here")] = msgspec.field(default=None, name="from")
    system: str | None = None
    template: Annotated[str | None, note("a Jinja template; Go's is refused")] = None
    parameters: Annotated[dict[str, Any] | None, note(f"of {', '.join(_PARAMETERS)}")] = None
    files: Any = None
    adapters: Any = None
    messages: Any = None
    quantize: Any = None
    modelfile: Any = None
    path: Any = None


def read_create(request: CreateRequest) -> Copied:
    """Return what a model has of its own; raises Problem."""
    refuse(request, _REFUSED)
    if not request.from_:
        raise bad("from", "give the name of a model that is here: POST /api/pull fetches one")
    table: dict[str, object] = {}
    for name, value in (request.parameters or {}).items():
        if value is None:
            continue
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            raise bad(f"parameters.{name}", f"models have {known}: send it in `options` of each request")
        if not (name == "num_predict" and isinstance(value, int) and value < 1):  # without a bound, as if absent
            table[_PARAMETERS[name]] = value
    if request.system:
        table["system"] = request.system
    if request.template and not all(sign in request.template for sign in _JINJA):
        raise bad("template", "send a Jinja template, or leave it out for the file's own: Go's are not read")
    return Copied(table, request.template or None)


class Left(Exception):
    """The client left: the change ends with the part that is there."""


class Lines:
    """The lines of one change: a thread adds them, and a stream takes them; the newest figure of a file counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._lines: list[dict[str, Any]] = []
        self._file: dict[str, Any] = {}
        self._shown = 0  # bytes of the file, as of its last line
        self._left = False

    def begin(self, name: str, done: int, size: int) -> None:
        """Add the line of a new file; its digest, by which clients tell files apart, is its name's."""
        digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        self._file = {"status": f"pulling {name}", "digest": digest, "total": size}
        self._shown = done
        self._add(self._file | {"completed": done})

    def update(self, done: int) -> None:
        """Add the number of bytes that are there, for each megabyte; raises Left."""
        if self._left:
            raise Left
        if done - self._shown >= _MB or done == self._file["total"]:
            self._shown = done
            self._add(self._file | {"completed": done})

    def note(self, line: str) -> None:
        """Add a status; raises Left."""
        if self._left:
            raise Left
        self._add({"status": line})

    def leave(self) -> None:
        """Have the change end at its next line."""
        self._left = True

    def end(self) -> None:
        """End the lines."""
        self._some.set()

    async def until(self, change: "asyncio.Task[None]") -> AsyncIterator[dict[str, Any]]:
        """Yield lines until the change has ended; raises what it raised."""
        change.add_done_callback(lambda _: self.end())
        while not change.done() or self._lines:
            await self._some.wait()
            self._some.clear()
            lines, self._lines = self._lines, []
            for line in lines:
                yield line
        await change

    def _add(self, line: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._take, line)

    def _take(self, line: dict[str, Any]) -> None:
        if self._lines and "completed" in line and self._lines[-1].get("digest") == line["digest"]:
            self._lines.pop()
        self._lines.append(line)
        self._some.set()
