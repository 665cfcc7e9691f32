"""Daemons of several generated models, with memory for some of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from car_daemon.models.memory_estimate import estimate_memory
from car_daemon.models.model_files import check_model
from car_daemon.models.settings import ModelSettings
from tests.e2e.support import CANARY, Daemon, Json, RawClient, running
from tools.random_model import generate

CONTEXT = 2048
# An answer that takes a while: the tiny models write thousands of tokens a second.
LONGEST = 1000
SEQUENCES = 2


def write_models(folder: Path, names: str, *, room_for: int | None = None, **more: str) -> Path:
    """Write models of one letter each, the first being the default one; return the configuration.

    `room_for` so many models there is memory; `more` is text for the tables of models by their names.
    """
    tables = []
    for seed, name in enumerate(names, start=1):
        generate(folder / f"{name}.gguf", "tiny", "q8_0", seed=seed)
        settings = f'path = "{folder}/{name}.gguf"\ncontext_tokens = {CONTEXT}\nsequences = {SEQUENCES}\n'
        tables.append(f"[models.{name}]\n{settings}{more.get(name, '')}\n")
    budget = (
        "" if room_for is None else f"[memory]\nbudget_bytes = {room_for * model_bytes(folder / f'{names[0]}.gguf')}\n"
    )
    config = folder / "card.toml"
    config.write_text(f'default_model = "{names[0]}"\n{budget}{"".join(tables)}')
    return config


def model_bytes(path: Path) -> int:
    """Return the bytes of one of these models while it is served, and a little more."""
    estimate = estimate_memory(check_model(path), ModelSettings(path, context_tokens=CONTEXT))
    return estimate.total_with((SEQUENCES + 1) * estimate.kv)


@contextmanager
def serving(folder: Path, names: str, *arguments: str, room_for: int | None = None, **more: str) -> Iterator[Daemon]:
    """Run a daemon of generated models for the length of a block, from when the default one is loaded."""
    config = write_models(folder, names, room_for=room_for, **more)
    with running(folder, "--config", str(config), *arguments) as daemon:
        yield daemon.ready()


def short(model: str, **more: object) -> Json:
    """Return the params of a request that is done at once."""
    return {"prompt": CANARY, "model": model, "max_tokens": 2, "seed": 1, **more}


def long(model: str) -> Json:
    """Return the params of a request that takes a while."""
    return {"prompt": CANARY, "model": model, "max_tokens": LONGEST, "ignore_eos": True, "seed": 1}


def states(client: RawClient) -> dict[str, str]:
    """Return the state of every model but the built-in one."""
    listed = client.result("models/list")["models"]
    return {model["name"]: model["state"] for model in listed if model["name"] != "guide"}


def loaded(client: RawClient) -> str:
    """Return the names of the models that are served."""
    return "".join(name for name, state in states(client).items() if state == "ready")


def until(client: RawClient, model: str, state: str) -> None:
    """Return once a model is in a state, however shortly; the connection must not be subscribed to it before."""
    now = client.result("inference/capacity", {"model": model, "subscribe": True})
    while now["state"] != state:
        message = client.receive()
        if message.get("method") == "inference/capacity_changed":
            now = message["params"]
    client.result("inference/capacity", {"model": model, "subscribe": False})


def engines(daemon: Daemon) -> list[psutil.Process]:
    """Return the engine processes that are alive."""
    children = psutil.Process(daemon.process.pid).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
