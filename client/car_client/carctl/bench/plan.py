"""The workload of each round of `carctl bench`, and the socket of the daemon."""

from argparse import Namespace
from os import PathLike
from typing import Any

from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.prompts import WORDS
from car_client.carctl.load.workload import Workload
from car_client.client import Client
from car_client.paths import connect, usable_paths

_REQUESTS_EACH = 4
_ARRIVALS = 20


def workloads(options: Namespace, capacity: int, tokens_per_word: float) -> list[Workload]:
    """Return a workload for each rate or, without rates, each number of requests at once."""
    sent: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "client": "carctl bench"}
    sent |= {name: value for name in ("model", "priority") if (value := getattr(options, name)) is not None}
    common: dict[str, Any] = {
        "prompts": options.prompt_tokens,
        "answers": options.max_tokens,
        "tokens_per_word": tokens_per_word,
        "options": sent,
        "seed": options.seed,
    }
    if options.rate:
        return [Workload(rate=rate, requests=options.requests or _ARRIVALS, **common) for rate in options.rate]
    return [
        Workload(clients=clients, requests=options.requests or _REQUESTS_EACH * clients, **common)
        for clients in options.at_once or doubling(capacity)
    ]


def doubling(capacity: int) -> list[int]:
    """Return the powers of two below the capacity, and the capacity."""
    return [*(2**power for power in range((capacity - 1).bit_length())), capacity]


def tokens_per_word(client: Client, model: str | None) -> float:
    """Return the mean length of the prompts' words in the model's tokens."""
    return max(1, len(client.tokenize(" ".join(WORDS), model=model))) / len(WORDS)


def daemon_endpoint(path: str | PathLike[str] | None) -> Endpoint:
    """Return the first socket on which a daemon listens; raises DaemonUnavailable."""
    with connect(usable_paths(path)) as probe:
        return Endpoint(probe.getpeername())
