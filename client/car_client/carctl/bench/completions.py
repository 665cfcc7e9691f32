"""Completion servers over HTTP/1.1: OpenAI's chats, completions and embeddings, and llama-server's own forms."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from car_client.carctl.bench.figures import TimedAnswer
from car_client.errors import CardError

COMPLETION = "/completion"
# The path of each kind of request, if the URL has none of its own.
_PATHS = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "tokens": "/v1/completions",
    "input": "/v1/embeddings",
    "state": "/v1/systemone",
}
# Kinds whose answer has one piece.
_WHOLE = ("input", "state")
_SAME_NAME = ("messages", "prompt", "input", "state", "model", "cache_prompt", "ignore_eos")
# The cheapest greedy sampling of llama-server: without top-k it computes the probabilities of the whole vocabulary, in
# twice the time of its default samplers.
_GREEDY = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
_HTTP = "http://"
_EVENTS, _JSON = "text/event-stream", "application/json"
_NAMES = {_EVENTS: "a stream of events", _JSON: "JSON"}
# What to check if the server answers with another status than 200, by its number.
_CHECKS = {
    "401": "the key in CARD_API_KEY",
    "403": "the key in CARD_API_KEY",
    "404": "the address, its path and the name of the model",
    "": "the address and its path",
}
_READ_BYTES = 64 * 1024
_NO_HTTP = "the server does not speak HTTP/1: check the address"
_CLOSED = "the connection was closed before the answer ended"


class LoadError(CardError):
    """The target refused, failed or broke its protocol."""


class _PromptDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(Struct, frozen=True):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens that were not computed again; None if the server does not count them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct, frozen=True):
    text: str | None = None
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Event(Struct, frozen=True):
    """The members of each dialect's events that a load reads; `done` stands for OpenAI's last line."""

    content: str = ""
    done: bool = False
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    stop: bool = False
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def text(self) -> str:
        """The piece of the answer, without thoughts."""
        return self.content + "".join((choice.text or "") + (choice.delta.content or "") for choice in self.choices)

    @property
    def has_piece(self) -> bool:
        """The event has a piece of the answer or of the thoughts before it."""
        deltas = [choice.delta for choice in self.choices]
        return bool(self.text) or any(each.reasoning_content or each.reasoning for each in deltas)

    @property
    def ends(self) -> bool:
        """The answer is whole after this event: a connection that closes before broke it off."""
        counted = self.usage is not None and not self.choices
        return self.done or self.stop or counted or any(choice.finish_reason for choice in self.choices)

    @property
    def counts(self) -> _Usage | None:
        """The lengths of answer and prompt in tokens; None if the event lacks them."""
        return self.usage or (_Usage(self.tokens_predicted, self.tokens_evaluated) if self.stop else None)


class _WholeUsage(Struct, frozen=True):
    """The length of the prompts, of embeddings or of decisions."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None


class _Whole(Struct, frozen=True):
    """Embeddings in `data`, or decisions in `answers`: some servers answer every path with a JSON object."""

    usage: _WholeUsage = _WholeUsage()
    data: list[msgspec.Raw] = []
    answers: dict[str, msgspec.Raw] = {}


_NEITHER = "the server's answer has neither embeddings nor decisions: check the path"
_decode = msgspec.json.Decoder(_Event).decode


class CompletionServer:
    """A server at a URL, with a connection for each request; a URL without a path means OpenAI's endpoints.

    Options and params have the names of `infer_stream`; `client` becomes the product of `User-Agent`.
    """

    def __init__(self, address: str, options: dict[str, Any], key: str | None = None) -> None:
        self._address = address
        self._key = key
        self._url = urlsplit(address)
        self._path = self._url.path.rstrip("/")
        self._options = options

    async def stream(self, params: Mapping[str, Any], started: asyncio.Event | None = None) -> TimedAnswer:
        """Send a request and return its timed answer; `started` is set with the first piece. Raises LoadError."""
        piece_times, counts, pieces, ended = [], _Usage(), [], False
        async with self._answering(params) as (reader, sent_at):
            async for event in events(reader):
                if event.has_piece:
                    piece_times.append(time.perf_counter())
                    pieces.append(event.text)
                    if started is not None:
                        started.set()
                counts = event.counts or counts
                ended = ended or event.ends
        tokens = counts.completion_tokens
        if tokens is None or tokens < 0:
            tokens = len(piece_times)
        if not ended or not (tokens or piece_times):
            raise LoadError(_CLOSED)
        times = piece_times or [time.perf_counter()]
        # Counts that contradict each other are none.
        counted = 0 <= (counts.cached_tokens or 0) <= (counts.prompt_tokens or 0)
        prompt = (counts.prompt_tokens, None, counts.cached_tokens) if counted else (None, None, None)
        return TimedAnswer(sent_at, times, tokens, *prompt, "".join(pieces))

    async def whole(self, params: Mapping[str, Any]) -> TimedAnswer:
        """Send params of `embed` or `decide`; the answer has one piece and no tokens. Raises LoadError."""
        async with self._answering(params) as (reader, sent_at):
            chunked = await _is_chunked(reader, _JSON)
            body = b"".join([data async for data in _body(reader, chunked=chunked)])
        try:
            found = msgspec.json.decode(body, type=_Whole)
        except msgspec.DecodeError:
            raise LoadError(_NEITHER) from None
        if not (found.data or found.answers):
            raise LoadError(_NEITHER)
        usage = found.usage
        return TimedAnswer(sent_at, [time.perf_counter()], 0, usage.prompt_tokens or usage.input_tokens)

    async def aclose(self) -> None:
        """Return at once: connections end with their answers."""

    @asynccontextmanager
    async def _answering(self, params: Mapping[str, Any]) -> AsyncIterator[tuple[asyncio.StreamReader, float]]:
        """Send a request on a new connection; yields its reader and the time of sending."""
        reader, writer = await self._connect()
        try:
            sent_at = time.perf_counter()
            writer.write(self.encode(params))
            yield reader, sent_at
        except (OSError, asyncio.IncompleteReadError):
            raise LoadError(_CLOSED) from None
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(self._url.hostname, self._url.port or 80)
        except OSError as error:
            # If a name is not found, the error has a number of its own. After several addresses it has none.
            if isinstance(error, socket.gaierror):
                reason = error.strerror or "its name is not found"
            else:
                reason = os.strerror(error.errno) if error.errno else "connection refused"
            raise LoadError(f"cannot connect to {self._address}: {reason.lower()}; is it running?") from error

    def encode(self, params: Mapping[str, Any]) -> bytes:
        """Return a POST request with the members that these servers have."""
        kind = next(name for name in _PATHS if name in params)
        path = _PATHS[kind] if self._path in ("", "/v1") else self._path
        wanted = {**self._options, **params}
        body = {name: wanted[name] for name in _SAME_NAME if name in wanted}
        if kind == "state":
            body["questions"] = {str(place): _asked(each) for place, each in enumerate(params["questions"])}
        if kind not in _WHOLE:
            body |= {"stream": True} | (_GREEDY if wanted.get("temperature") == 0 else {})
        if kind == "tokens":
            body["prompt"] = wanted["tokens"]
        if path.endswith(COMPLETION):
            body["n_predict"] = wanted["max_tokens"]
        elif kind not in _WHOLE:
            body |= {"max_tokens": wanted["max_tokens"], "stream_options": {"include_usage": True}}
        if "json_schema" in wanted:
            form = {"name": "form", "schema": wanted["json_schema"], "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        content = msgspec.json.encode(body)
        authorization = f"authorization: Bearer {self._key}\r\n" if self._key else ""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._url.netloc}\r\nuser-agent: {wanted.get('client', 'carctl')}\r\n"
            f"accept: {_JSON if kind in _WHOLE else _EVENTS}\r\nconnection: close\r\ncontent-type: {_JSON}\r\n"
            f"{authorization}content-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


def _asked(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question of `decide` as llama-server has it."""
    asked = {"type": question["type"], "instructions": question["instructions"]}
    match question["type"]:
        case "choice":
            return asked | {"criteria": {each["value"]: each.get("description") for each in question["options"]}}
        case "score":
            return asked | {"criteria": [each["label"] for each in question["levels"]]}
    return asked | {"type": "noul"}


async def events(reader: asyncio.StreamReader) -> AsyncIterator[_Event]:
    """Yield the events of a response; raises LoadError unless it is a stream of completions."""
    rest = b""
    async for data in _body(reader, chunked=await _is_chunked(reader, _EVENTS)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            field, _, value = line.partition(b":")
            if field == b"data":
                value = value.strip()
                yield _Event(done=True) if value == b"[DONE]" else _event(value)


async def _is_chunked(reader: asyncio.StreamReader, expected: str) -> bool:
    """Read the head of a response; raises LoadError unless a body of the expected type follows."""
    try:
        status = (await reader.readline()).decode("latin-1")
        headers = {}
        if status.startswith("HTTP/1."):
            while line := (await reader.readline()).decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
    except ValueError:  # a line longer than the reader's limit
        raise LoadError(_NO_HTTP) from None
    if not status:
        raise LoadError(_CLOSED)
    version, _, code = status.strip().partition(" ")
    if not version.startswith("HTTP/1."):
        raise LoadError(_NO_HTTP)
    if not code.startswith("200"):
        raise LoadError(f"the server answered {code}: check {_CHECKS.get(code[:3], _CHECKS[''])}")
    content_type = headers.get("content-type", "").lower()
    if not content_type.startswith(expected):
        raise LoadError(f"the server answered with {content_type or 'no type'} instead of {_NAMES[expected]}")
    return headers.get("transfer-encoding", "").lower() == "chunked"


async def _body(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """Yield the parts of a body, which is chunked or ends with the connection."""
    if not chunked:
        while data := await reader.read(_READ_BYTES):
            yield data
        return
    while size := await _size(reader):
        # Every chunk ends with an empty line.
        yield (await reader.readexactly(size + 2))[:size]


async def _size(reader: asyncio.StreamReader) -> int:
    """Read the size of the next chunk; raises LoadError."""
    try:
        if not (line := await reader.readline()):
            raise LoadError(_CLOSED)
        if (size := int(line.split(b";")[0], 16)) >= 0:
            return size
    except ValueError:  # also for a line longer than the reader's limit
        pass
    raise LoadError("the server's answer is not valid HTTP: a chunk has no size")


def _event(data: bytes) -> _Event:
    try:
        event = _decode(data)
    except msgspec.DecodeError:
        raise LoadError("the server sent an event that is not a completion: check the path") from None
    if event.error is not None:
        message = event.error.get("message") if isinstance(event.error, dict) else event.error
        raise LoadError(f"the server answered with an error: {message}")
    return event


def is_url(address: str) -> bool:
    """Return whether an address is a URL, not the path of a socket."""
    return address.startswith(_HTTP)


def parse_url(text: str) -> str:
    """Return a usable `http://` URL; raises ValueError for any other text."""
    url = urlsplit(text)
    if not is_url(text) or not url.hostname or url.port == 0:
        raise ValueError("give a URL like http://127.0.0.1:8080; https is not supported")
    if "@" in url.netloc or url.query or url.fragment or any(letter.isspace() for letter in text):
        raise ValueError("give a URL without a user, a query and spaces; the key is in CARD_API_KEY")
    try:
        url.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("the name of the host is not valid") from None
    return text
