"""Prompt tokens that a daemon computes of the tokens that are new, in conversations that go on, branch and share.

`python -m benchmarks.histories [MODEL...]` prints a line a scenario for each model file; without one for small random
models of each kind of memory. With LLAMA_SERVER a line of llama-server's follows each. A token is new if no earlier
prompt or answer begins with the tokens up to it. Counts do not depend on how busy the machine is.
"""

import asyncio
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import uvloop

from benchmarks.report import Report
from benchmarks.targets.card import serving
from benchmarks.targets.llama_server import found_llama_servers
from car_client import AsyncClient
from car_client.carctl.bench.completions import COMPLETION
from tools.random_model import generate
from tools.random_models.hybrid import generate_delta_net, generate_mamba2_hybrid, generate_short_convolution
from tools.random_models.recurrent import generate_recurrent
from tools.random_models.sliding import generate_sliding

Message = dict[str, str]
CONTEXT_TOKENS = 4096
KINDS: dict[str, Callable[[Path], None]] = {
    "cells (Llama)": lambda path: generate(path, "tiny", "q8_0"),
    "windows (Gemma 3)": generate_sliding,
    "states (Mamba)": generate_recurrent,
    "states and cells (LFM2)": generate_short_convolution,
    "states and cells (Qwen3.5)": generate_delta_net,
    "states and cells (Granite 4 H)": generate_mamba2_hybrid,
}


class Answered(NamedTuple):
    """An answer, and how many tokens of its prompt were computed."""

    text: str
    tokens: list[int]
    computed: int


class Server(Protocol):
    """What reads the prompts: a daemon, or llama-server."""

    async def prompt(self, messages: list[Message]) -> list[int]:
        """Return the tokens of a prompt."""
        ...

    async def answer(self, messages: list[Message], prompt: list[int], answer_tokens: int) -> Answered:
        """Return the greedy answer of so many tokens."""
        ...


class Card:
    """A daemon."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def prompt(self, messages: list[Message]) -> list[int]:
        """Return the tokens of a prompt."""
        return await self._client.tokenize(messages=messages)

    async def answer(self, messages: list[Message], prompt: list[int], answer_tokens: int) -> Answered:
        """Return the greedy answer of so many tokens."""
        options: dict[str, Any] = {"max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True}
        answer = await self._client.infer(messages=messages, return_tokens=True, **options)
        computed = answer.usage.prompt_tokens - answer.usage.cached_tokens
        return Answered(answer.text, list(answer.tokens or ()), computed)


class Slots:
    """llama-server, at the URL of its completions."""

    def __init__(self, completions: str) -> None:
        self._url = completions.removesuffix(COMPLETION)

    async def prompt(self, messages: list[Message]) -> list[int]:
        """Return the tokens of a prompt."""
        text = (await self._post("apply-template", messages=messages))["prompt"]
        tokens: list[int] = (await self._post("tokenize", content=text, add_special=True))["tokens"]
        return tokens

    async def answer(self, messages: list[Message], prompt: list[int], answer_tokens: int) -> Answered:
        """Return the greedy answer of so many tokens."""
        options = {"n_predict": answer_tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True}
        answer = await self._post("completion", prompt=prompt, **options)
        return Answered(answer["content"], answer["tokens"], answer["timings"]["prompt_n"])

    async def _post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(f"{self._url}/{path}", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")

        def read() -> Any:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)

        return await asyncio.to_thread(read)


class Totals:
    """The prompts of one scenario: what was asked, what was new, what was computed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: list[list[int]] = []
        self.requests = self.tokens = self.new = self.computed = 0

    async def ask(self, messages: list[Message], answer_tokens: int = 24) -> Message:
        """Return the model's next message."""
        prompt = await self._server.prompt(messages)
        self.new += len(prompt) - max((common(prompt, known) for known in self._known), default=0)
        self._known.append(prompt)
        answer = await self._server.answer(messages, prompt, answer_tokens)
        self._known.append([*prompt, *answer.tokens])
        self.requests += 1
        self.tokens += len(prompt)
        self.computed += answer.computed
        return {"role": "assistant", "content": answer.text}


Scenario = Callable[[Totals], Coroutine[Any, Any, None]]


def common(one: list[int], other: list[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    apart = (place for place, (mine, yours) in enumerate(zip(one, other, strict=False)) if mine != yours)
    return next(apart, min(len(one), len(other)))


def words(count: int, seed: int) -> str:
    """Return a text that begins like no other."""
    return " ".join(f"{(seed * 7919 + place * 104_729) % 9973:04d}" for place in range(count))


def user(count: int, seed: int) -> Message:
    """Return a message of a user."""
    return {"role": "user", "content": words(count, seed)}


async def chat(totals: Totals) -> None:
    """Hold ten turns of a conversation."""
    history: list[Message] = []
    for turn in range(10):
        history.append(user(12, turn))
        history.append(await totals.ask(history))


async def dropped_thoughts(totals: Totals) -> None:
    """Hold ten turns; the first half of each answer is not sent again."""
    history: list[Message] = []
    for turn in range(10):
        history.append(user(12, turn))
        answer = await totals.ask(history, 40)
        history.append({**answer, "content": answer["content"][len(answer["content"]) // 2 :]})


async def regenerated(totals: Totals) -> None:
    """Ask twice more for an answer to the same conversation."""
    history = [user(200, 1)]
    for _ in range(3):
        await totals.ask(history)


async def edited(totals: Totals) -> None:
    """Edit the sixth message of a conversation."""
    history: list[Message] = []
    for turn in range(5):
        history += [user(20, turn), await totals.ask([*history, user(20, turn)])]
    await totals.ask([*history[:6], user(20, 99)])


async def back_to_a_branch(totals: Totals) -> None:
    """Go on in a conversation, in a branch of it, and in the conversation again."""
    history: list[Message] = []
    for turn in range(5):
        history += [user(20, turn), await totals.ask([*history, user(20, turn)])]
    await totals.ask([*history[:6], user(20, 99)])
    await totals.ask([*history, user(20, 5)])


async def sub_agents(totals: Totals) -> None:
    """Let two agents that share a long text hold four turns each, at once."""
    await _agents(totals, agents=2, shared=300, turns=4)


async def crowded_agents(totals: Totals) -> None:
    """Let four agents that share a text hold five turns each."""
    await _agents(totals, agents=4, shared=100, turns=5)


async def _agents(totals: Totals, *, agents: int, shared: int, turns: int) -> None:
    system = {"role": "system", "content": words(shared, 7)}

    async def hold(agent: int) -> None:
        history = [system]
        for turn in range(turns):
            history.append(user(12, 100 * agent + turn + 10))
            history.append(await totals.ask(history))

    await asyncio.gather(*(hold(agent) for agent in range(agents)))


SCENARIOS: dict[str, tuple[int, Scenario]] = {
    "chat, 10 turns": (2, chat),
    "the same, thoughts dropped": (2, dropped_thoughts),
    "regenerate, twice": (2, regenerated),
    "edit of the 6th message": (2, edited),
    "back to the branch that was left": (2, back_to_a_branch),
    "2 sub-agents at once, long text shared": (2, sub_agents),
    "4 agents on 2 sequences": (2, crowded_agents),
}


async def measured(socket: Path, scenario: Scenario) -> Totals:
    """Return the totals of a scenario through a daemon."""
    async with AsyncClient(socket) as client:
        totals = Totals(Card(client))
        await scenario(totals)
        return totals


def measure(report: Report, name: str, model: Path) -> None:
    """Report the scenarios of one model, each on a daemon of its own."""
    for what, (sequences, scenario) in SCENARIOS.items():
        with serving(model, "--capacity", str(sequences), "--context-tokens", str(CONTEXT_TOKENS)) as socket:
            totals = uvloop.run(measured(socket, scenario))
        bound = 1.05 * totals.new + 8 * totals.requests
        verdict = "holds" if totals.computed <= bound else "MISSED"
        figures = f"{totals.computed} computed of {totals.tokens}, {totals.new} new, at most {bound:.0f}: {verdict}"
        report.say(f"{name}: {what}: {figures}; ratio", totals.computed / totals.new)
        for server in found_llama_servers(("split",)):
            with server.serving(str(model), sequences, CONTEXT_TOKENS) as url:
                totals = Totals(Slots(url))
                uvloop.run(scenario(totals))
            figures = f"{totals.computed} computed of {totals.tokens}, {totals.new} new"
            report.say(f"{name}: {what}, {server.name}: {figures}; ratio", totals.computed / totals.new)


def main() -> None:
    """Measure the model files that are given, or a small one of each kind."""
    report = Report("histories")
    for path in map(Path, sys.argv[1:]):
        measure(report, path.stem, path)
    if not sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="card-") as folder:
            for number, (name, write) in enumerate(KINDS.items()):
                write(path := Path(folder) / f"{number}.gguf")
                measure(report, name, path)
    report.close()


if __name__ == "__main__":
    main()
