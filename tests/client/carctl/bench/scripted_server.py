"""A server without a model: answers take scripted times, so many at once, the others wait in their order."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from car_client.carctl.bench.completions import LoadError
from car_client.carctl.bench.figures import TimedAnswer
from car_client.carctl.bench.generator import LoadedDaemon
from tests.client.carctl.bench.virtual_time import now


class ScriptedServer:
    """Reads a prompt in `prompt_s` and writes a token each `token_s`; three tokens of a prompt of ten are cached."""

    def __init__(self, at_once: int = 100, prompt_s: float = 0.5, token_s: float = 0.25) -> None:
        self.prompt_s = prompt_s
        self.token_s = token_s
        self.first_s = 0.0  # more for a prompt that did not come before
        self.refuses: dict[str, str] = {}  # a reason, by label
        self.later: dict[str, str] = {}  # of a label's later requests: `refused`, `broken` after a token, `silent`
        self.asked: list[tuple[str, float, Mapping[str, Any]]] = []  # label, time, params
        self.open = 0
        self.gone_at = math.inf  # no connection is made from then on
        self._sequences = asyncio.Semaphore(at_once)

    async def connect(self, label: str) -> "ScriptedTarget":
        """Return a connection."""
        if now() >= self.gone_at:
            raise LoadError("nobody is there")
        self.open += 1
        return ScriptedTarget(self, label)

    async def answer(self, label: str, params: Mapping[str, Any], started: asyncio.Event | None) -> TimedAnswer:
        """Answer as the knobs say."""
        sent_at, times = now(), []
        self.asked.append((label, sent_at, params))
        if label in self.refuses:
            raise LoadError(self.refuses[label])
        fate = self.later.get(label) if sum(each == label for each, _, _ in self.asked) > 1 else None
        if fate == "refused":
            raise LoadError("no")
        if fate == "silent":
            await asyncio.Event().wait()
        async with self._sequences:
            known = any(earlier == params for _, _, earlier in self.asked[:-1])
            await asyncio.sleep(self.prompt_s if known else self.prompt_s + self.first_s)
            tokens = params.get("max_tokens", 0)
            for number in range(max(1, tokens)):
                times.append(now())
                if started is not None:
                    started.set()
                if fate == "broken":
                    raise LoadError("broken")
                if number < tokens - 1:
                    await asyncio.sleep(self.token_s)
        return TimedAnswer(sent_at, times, tokens, 10, None, 3, "words of an answer")


class ScriptedTarget(LoadedDaemon):
    """One connection, with the label of its app."""

    def __init__(self, server: ScriptedServer, label: str) -> None:
        self._server = server
        self._label = label

    async def stream(self, params: Mapping[str, Any], started: asyncio.Event | None = None) -> TimedAnswer:
        """Answer."""
        return await self._server.answer(self._label, params, started)

    async def whole(self, params: Mapping[str, Any]) -> TimedAnswer:
        """Answer at once when the prompt was read."""
        return await self._server.answer(self._label, params, None)

    async def aclose(self) -> None:
        """Count the end."""
        self._server.open -= 1
