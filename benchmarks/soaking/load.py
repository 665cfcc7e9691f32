"""The actions of the soak's clients, one after the other, drawn by a seed."""

import asyncio
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from benchmarks.soaking.books import Books, Json
from benchmarks.soaking.client import Peer

_QUESTIONS = Path(__file__).parents[2] / "tools" / "guide" / "questions.toml"
_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "arguments": {"type": "object", "properties": {"count": {"type": "integer"}, "deep": {"type": "boolean"}}},
    },
    "required": ["name", "arguments"],
}
_GRAMMARS = ('root ::= "yes" | "no"', "root ::= [a-z]{5,40}", 'root ::= ("ab" | "cd")+ "."')
_WORDS = ["capacity", "lease", "daemon", "queue", "sequence", "engine", "socket", "model", "token", "prompt", "stream"]


def questions() -> list[tuple[str, str]]:
    """Return what the built-in model was trained on: questions and their answers."""
    entries = tomllib.loads(_QUESTIONS.read_text(encoding="utf-8"))["entry"]
    return [(entry["question"], entry["answer"]) for entry in entries]


def endless(**more: object) -> Json:
    """Return the params of a request that runs for seconds unless it is ended."""
    return {"prompt": "and so on", "ignore_eos": True, "max_tokens": 3000, "seed": 1, **more}


class Lane:
    """One client that always has something to do; every choice is its seed's."""

    def __init__(self, socket: Path, books: Books, seed: int) -> None:
        self._socket = socket
        self._books = books
        self._random = Random(seed)
        self._known = questions()
        self._scenes: list[Callable[[Peer], Awaitable[None]]] = [
            *[self._ask, self._ask_as_stream] * 4,
            *(self._embed, self._look_up, self._look_around, self._grammar, self._schema),
            *(self._session, self._cancel, self._disconnect, self._half_close, self._read_slowly),
            *(self._deadline, self._supersede, self._many, self._long_prompt),
        ]

    async def run(self, until: asyncio.Event) -> None:
        """Play scenes until the event; a scene that it finds running is played to its end."""
        peer = await Peer.connect(self._socket, self._books)
        while not until.is_set():
            scene = self._random.choice(self._scenes)
            try:
                await scene(peer)
            except (TimeoutError, asyncio.CancelledError, ConnectionError) as error:
                self._books.violate(f"{scene.__name__} was cut off: {type(error).__name__}")
                peer = await Peer.connect(self._socket, self._books)
            await asyncio.sleep(self._random.expovariate(20))
        await peer.leave()

    def _options(self) -> Json:
        random = self._random
        options: Json = {"max_tokens": random.randint(20, 400)}
        if random.random() < 0.3:
            options["priority"] = "throughput"
        if random.random() < 0.3:
            options["client"] = random.choice(["editor", "shell", "mail"])
        if random.random() < 0.2:
            options["progress"] = True
        if random.random() < 0.1:
            options |= {"logprobs": random.randint(0, 5), "return_tokens": True}
        return options

    def _prose(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    def _free(self) -> Json:
        return {"prompt": self._prose(self._random.randint(1, 60)), "ignore_eos": True, **self._options()}

    async def _ask(self, peer: Peer) -> None:
        question, answer = self._random.choice(self._known)
        params = {"messages": [{"role": "user", "content": question}], "temperature": 0}
        response = await peer.call("infer", params)
        if "result" in response:
            self._books.check(response["result"]["text"] == answer, f"a wrong answer to: {question}")

    async def _ask_as_stream(self, peer: Peer) -> None:
        if self._random.random() < 0.5:
            await peer.call("infer_stream", self._free())
            return
        question, answer = self._random.choice(self._known)
        request = peer.send("infer_stream", {"messages": [{"role": "user", "content": question}], "temperature": 0})
        if "result" in await peer.wait(request):
            self._books.check(request.text == answer, f"a wrong stream to: {question}")

    async def _embed(self, peer: Peer) -> None:
        texts = [self._prose(self._random.randint(1, 20)) for _ in range(self._random.randint(1, 16))]
        response = await peer.call("embed", {"input": texts})
        if "result" in response:
            self._books.check(len(response["result"]["embeddings"]) == len(texts), "embeddings are missing")

    async def _look_up(self, peer: Peer) -> None:
        text = self._prose(self._random.randint(1, 200))
        response = await peer.call("tokenize", {"text": text})
        if "result" in response:
            back = await peer.call("detokenize", {"tokens": response["result"]["tokens"]})
            if "result" in back:
                self._books.check(back["result"]["text"].strip() == text, "tokens do not give their text back")

    async def _look_around(self, peer: Peer) -> None:
        for method in ("inference/capacity", "daemon/status", "models/list"):
            await peer.call(method)

    async def _grammar(self, peer: Peer) -> None:
        await peer.call("infer", {"prompt": "Say", "grammar": self._random.choice(_GRAMMARS), "max_tokens": 60})

    async def _schema(self, peer: Peer) -> None:
        await peer.call("infer_stream", {"prompt": "Call", "json_schema": _SCHEMA, "max_tokens": 100})

    async def _session(self, peer: Peer) -> None:
        begin = self._prose(150)
        for _ in range(3):
            begin += " " + self._prose(10)
            await peer.call("infer", {"prompt": begin, "session": f"s{self._random.randrange(4)}", "max_tokens": 20})

    async def _cancel(self, peer: Peer) -> None:
        request = peer.send(self._random.choice(["infer", "infer_stream"]), endless())
        await asyncio.sleep(self._random.uniform(0, 0.3))
        peer.cancel(request)
        await peer.wait(request)

    async def _disconnect(self, _peer: Peer) -> None:
        other = await Peer.connect(self._socket, self._books)
        request = other.send("infer_stream", endless())
        if self._random.random() < 0.7:
            await other.begun(request)
        await other.leave()

    async def _half_close(self, _peer: Peer) -> None:
        other = await Peer.connect(self._socket, self._books)
        requests = [other.send("infer", self._free()), other.send("infer_stream", self._free())]
        other.expect_end()
        other.half_close()
        for request in requests:
            await other.wait(request)
        await other.ended()

    async def _read_slowly(self, _peer: Peer) -> None:
        other = await Peer.connect(self._socket, self._books)
        request = other.send("infer_stream", endless(logprobs=20, max_tokens=600))
        await other.begun(request)
        other.stop_reading()
        await asyncio.sleep(self._random.uniform(0.5, 3))
        other.read_on()
        await other.wait(request)
        await other.leave()

    async def _deadline(self, peer: Peer) -> None:
        member = self._random.choice(["timeout_ms", "queue_timeout_ms"])
        await peer.call("infer", endless(max_tokens=800, **{member: self._random.randint(1, 500)}))

    async def _supersede(self, peer: Peer) -> None:
        requests = [peer.send("infer_stream", endless(supersede="typing", max_tokens=200)) for _ in range(3)]
        for request in requests:
            await peer.wait(request)

    async def _many(self, peer: Peer) -> None:
        more: Json = self._random.choice([{}, {"wait": False}, {"queue": False}, {"priority": "throughput"}])
        requests = [peer.send("infer", {**self._free(), **more, "max_tokens": 20}) for _ in range(4)]
        for request in requests:
            await peer.wait(request)

    async def _long_prompt(self, peer: Peer) -> None:
        await peer.call("infer", {"prompt": self._prose(400), "max_tokens": 30, "cache_prompt": False})
