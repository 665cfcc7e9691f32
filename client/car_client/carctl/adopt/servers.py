"""The servers that can be adopted: their ports, their models, and requests in their dialects."""

import http.client
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from car_client.carctl.adopt.candidates import (
    Candidate,
    folder_and_preset,
    of_llama_server,
    of_lm_studio,
    of_ollama,
    option_of,
)
from car_client.carctl.adopt.listening import Listening
from car_client.carctl.models.ollama_store import ollama_folders, ollama_models
from car_client.carctl.models.stores import files_below, find_models

# A promise: the proof loads a model from a slow disk and answers one token.
_PROOF_S = 300.0
_PROBE_S = 5.0


class OtherServer(Struct, frozen=True):
    """A server: the path that only it answers, with a member of the answer, and a chat with the path of its text."""

    title: str
    port: int
    probe: tuple[str, str]
    names: tuple[str, str, str]  # the path that lists models, the member of the list, and that of a name
    chat: tuple[str, dict[str, Any]]
    unit: str  # the usual one of the machine
    variables: tuple[str, ...]
    candidates: Callable[[Listening | None, Mapping[str, str], Path], list[Candidate]]
    switch: tuple[str, ...] = ()  # a command of its own, below the home, that stops and starts it
    slots: str = ""  # the path that shows which sequences are busy


def _ollama(running: Listening | None, env: Mapping[str, str], home: Path) -> list[Candidate]:
    folders = ollama_folders({**env, **(running.env if running else {})}, home)
    found = {model.name: model for folder in reversed(folders) for model in ollama_models(folder)}
    return of_ollama(found.values())


def _lm_studio(running: Listening | None, env: Mapping[str, str], home: Path) -> list[Candidate]:
    try:
        moved = json.loads((home / ".lmstudio" / "settings.json").read_bytes()).get("downloadsFolder")
    except (OSError, ValueError, AttributeError):
        moved = None
    files = [each for each in find_models(env, home) if each.store == "LM Studio"]
    return of_lm_studio(dict.fromkeys([*files, *(files_below("LM Studio", Path(moved)) if moved else [])]))


def _llama_server(running: Listening | None, env: Mapping[str, str], home: Path) -> list[Candidate]:
    started = running or Listening(0)
    given = [word for name, value in started.env.items() for word in (option_of(name), value)]
    arguments, place = [*given, *started.arguments], Path(started.folder)
    folder, preset = folder_and_preset(arguments)
    try:
        presets = (place / preset).read_text(encoding="utf-8") if preset else ""
    except (OSError, UnicodeDecodeError):
        presets = ""
    if folder:
        found = list(files_below("llama.cpp", place / folder))
    else:
        found = [each for each in find_models({**env, **started.env}, home) if each.store in _CACHES]
    return of_llama_server(arguments, place, presets, found)


_CACHES = ("llama.cpp", "Hugging Face")
_OPENAI = ("/v1/models", "data", "id")
_HI = [{"role": "user", "content": "Hi"}]
_OPENAI_CHAT = ("/v1/chat/completions", {"messages": _HI, "max_tokens": 1})
SERVERS = {
    "ollama": OtherServer(
        "Ollama",
        11434,
        ("/api/version", "version"),
        ("/api/tags", "models", "name"),
        ("/api/chat", {"messages": _HI, "stream": False, "options": {"num_predict": 1}}),
        "ollama.service",
        ("OLLAMA_",),
        _ollama,
    ),
    "lmstudio": OtherServer(
        "LM Studio",
        1234,
        ("/api/v0/models", "data"),
        _OPENAI,
        _OPENAI_CHAT,
        "",
        ("LMS_",),
        _lm_studio,
        (".lmstudio/bin/lms", "server"),
    ),
    "llama-server": OtherServer(
        "llama-server",
        8080,
        ("/props", "default_generation_settings"),
        _OPENAI,
        _OPENAI_CHAT,
        "llama-server.service",
        ("LLAMA_", "HF_"),
        _llama_server,
        slots="/slots",
    ),
}


def is_answered_by(server: OtherServer, port: int) -> bool:
    """Return whether a server of this kind answers at a port."""
    path, member = server.probe
    try:
        answer = _requested(port, path, None, _PROBE_S)
    except (OSError, ValueError):
        return False
    return isinstance(answer, dict) and member in answer


def busy_slots(server: OtherServer, port: int) -> int:
    """Return how many sequences are busy; 0 if the server does not show it.

    llama-server sends the head of a stream before it reads the prompt, so that its connections look answered.
    """
    try:
        slots: Any = _requested(port, server.slots, None, _PROBE_S) if server.slots else []
        return sum(bool(each["is_processing"]) for each in slots)
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def proof(server: OtherServer, port: int, model: str | None) -> str:
    """Return what a client of this server sees at a port: its models, and an answer; raises OSError or ValueError."""
    path, member, name = server.names
    names = [str(each[name]) for each in _requested(port, path, None, _PROBE_S)[member]]
    seen = f"GET {path} lists {len(names)} models"
    if model is None:
        return seen
    if model not in names:
        raise ValueError(f"GET {path} does not list {model}")
    path, body = server.chat
    _requested(port, path, {"model": model, **body}, _PROOF_S)
    return f"{seen}; POST {path} is answered by {model}"


def _requested(port: int, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
    """Return the value that answers a request; raises OSError, or ValueError with the error in it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
    except http.client.HTTPException as error:
        raise ValueError(f"{path}: {type(error).__name__}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise ValueError(f"{path}: {response.status} {json.dumps(answer)[:300]}")
    return answer
