"""The apps of a house: what each sends and when, the same for the same seed, without any server."""

import json
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Literal

from msgspec import Struct

from car_client.carctl.bench.workload import WORDS

Message = dict[str, str]
# What a new prompt of an app has of earlier prompts is the point: all conversations fit 2,048 tokens of context.
_TURNS = {"agent": 5, "sub-agent": 3, "person": 4}
_LINES_A_FILE = 12
_DEVICES = ["lamp", "heating", "blinds", "door", "radio", "oven"]
_FORM = {
    "type": "object",
    "properties": {
        "device": {"enum": _DEVICES},
        "action": {"enum": ["on", "off", "set", "ask"]},
        "percent": {"enum": [0, 25, 50, 75, 100]},
    },
    "required": ["device", "action", "percent"],
    "additionalProperties": False,
}

_FOLDERS = ["family", "work", "bills", "news"]
_QUESTIONS = [
    {"type": "choice", "instructions": "The folder of this mail", "options": [{"value": name} for name in _FOLDERS]},
    {"type": "predicate", "instructions": "It needs an answer today"},
    {
        "type": "score",
        "instructions": "How friendly it is",
        "levels": [{"label": "not"}, {"label": "a bit"}, {"label": "very"}],
    },
]


class Call(Struct, frozen=True):
    """A request: params of `infer_stream`, of `embed` or of `decide`; `pause_s` passes since the answer before."""

    pause_s: float
    params: dict[str, Any]

    @property
    def text(self) -> str:
        """The prompt as one text, whose beginning a cache may have; empty for other methods."""
        messages = self.params.get("messages", [])
        return str(self.params.get("prompt", "")) + "".join(f"{each['role']}: {each['content']}\n" for each in messages)


# Yields the requests of a conversation one by one, and is sent the text of each answer: None if there is no answer.
Lane = Generator[Call, str | None, None]


class App(Struct, frozen=True):
    """An app: the point of an answer for which it waits, and its lanes, each with one request at a time.

    With `every_s` a request is sent so long after the one before, and ends it if it is still unanswered. A lane is made
    of its random numbers and of a name for the session, which is in every prompt, so that no other session's is cached.
    """

    name: str
    waits_for: Literal["first token", "answer"]
    lanes: Sequence[Callable[[Random, str], Lane]]
    every_s: float | None = None


def _words(chance: Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def _answered(messages: list[Message], answer: str, following: str) -> list[Message]:
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": following}]


def _system(session: str, task: str, first: str) -> list[Message]:
    return [
        {"role": "system", "content": f"Session {session}. {task}"},
        {"role": "user", "content": first},
    ]


def _free(messages: list[Message], max_tokens: int) -> dict[str, Any]:
    """Return the params of an answer that has its length whatever the model writes."""
    return {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True}


def _tools() -> str:
    chance = Random("tools")
    names = ["read_file", "write_file", "list_files", "search", "run", "fetch", "plan", "remember"]
    return json.dumps(
        [{"name": name, "description": _words(chance, 60), "args": chance.sample(WORDS, 4)} for name in names]
    )


def _agent(role: str, *, answer: int, result: tuple[int, int], tool_s: tuple[float, float]) -> Callable[..., Lane]:
    """Return a lane of tasks: an answer, a tool's result, the next answer; all roles share instructions and tools."""

    def lane(chance: Random, session: str) -> Lane:
        """Finish tasks by tools: an answer, a tool's result, the next answer."""
        task = (
            f"You finish tasks by tools. Call one tool, then wait for its result. Tools: {_tools()} You are the {role}."
        )
        while True:
            messages = _system(session, task, _words(chance, 40))
            for _ in range(_TURNS[role]):
                text = yield Call(chance.uniform(*tool_s), _free(messages, answer))
                if text is None:
                    break
                messages = _answered(messages, text, f"Result: {_words(chance, chance.randint(*result))}")

    return lane


def _person(chance: Random, session: str) -> Lane:
    """Chat: a question, an answer, which is read, the next question."""
    while True:
        messages = _system(session, "You are friendly and brief.", _words(chance, chance.randint(10, 40)))
        for _ in range(_TURNS["person"]):
            text = yield Call(chance.uniform(3, 7), _free(messages, chance.randint(48, 96)))
            if text is None:
                break
            messages = _answered(messages, text, _words(chance, chance.randint(10, 40)))


def _editor(chance: Random, session: str) -> Lane:
    """Complete the line at the cursor of a file, which has a line more each time."""
    while True:
        source = [f"# Session {session}", *(f"import {word}" for word in chance.sample(WORDS, 12))]
        for _ in range(_LINES_A_FILE):
            name, first, second = chance.choices(WORDS, k=3)
            source += [f"def {name}({first}, {second}):", f"    return {second}.{name}({first})", ""]
            prompt = "\n".join([*source, "def "])
            yield Call(0.0, {"prompt": prompt, "max_tokens": 24, "ignore_eos": True})


def _home(chance: Random, session: str) -> Lane:
    """Turn a spoken sentence into a form."""
    task = f"Fill the form for the sentence. Devices: {', '.join(_DEVICES)}."
    while True:
        messages = _system(session, task, f"{_words(chance, 8)} {chance.choice(_DEVICES)} {_words(chance, 4)}")
        yield Call(10.0, {"messages": messages, "max_tokens": 64, "json_schema": _FORM})


def _summarizer(chance: Random, session: str) -> Lane:
    """Summarize one document after the other."""
    while True:
        messages = _system(session, "Summarize the document.", _words(chance, chance.randint(400, 700)))
        yield Call(chance.uniform(0.5, 1), _free(messages, 120))


def _embedder(chance: Random, session: str) -> Lane:
    """Index eight paragraphs at a time."""
    while True:
        yield Call(5.0, {"input": [f"{session} {_words(chance, 40)}" for _ in range(8)]})


def _decider(chance: Random, session: str) -> Lane:
    """Sort one mail after the other."""
    while True:
        yield Call(4.0, {"state": f"{session}: {_words(chance, chance.randint(60, 150))}", "questions": _QUESTIONS})


_SUB_AGENT = _agent("sub-agent", answer=48, result=(30, 90), tool_s=(0.2, 1.0))
APPS = {
    app.name: app
    for app in (
        App("person", "first token", [_person]),
        App("editor", "answer", [_editor], every_s=1.5),
        App("home", "answer", [_home]),
        App("agent", "answer", [_agent("agent", answer=64, result=(60, 150), tool_s=(0.3, 2.0)), *[_SUB_AGENT] * 2]),
        App("summarizer", "answer", [_summarizer]),
        App("embedder", "answer", [_embedder]),
        App("decider", "answer", [_decider]),
    )
}


def parse_apps(text: str) -> list[App]:
    """Parse `person,editor`; raises ValueError."""
    names = text.split(",")
    if unknown := [name for name in names if name not in APPS]:
        raise ValueError(f"there is no app {unknown[0]!r}: give {', '.join(APPS)}")
    return [APPS[name] for name in dict.fromkeys(names)]
