"""Samplers that llama-server and Ollama set by members of their own, and the daemon by one object each."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from car_protocol.sampling import Fraction

# The members of each object by the names of theirs; the first one turns the sampler on.
_OBJECTS: Mapping[str, Mapping[str, str]] = {
    "xtc": {"probability": "xtc_probability", "threshold": "xtc_threshold"},
    "dry": {name: f"dry_{name}" for name in ("multiplier", "base", "allowed_length", "penalty_last_n")}
    | {"sequence_breakers": "dry_sequence_breakers"},
    "mirostat": {"version": "mirostat", "tau": "mirostat_tau", "eta": "mirostat_eta"},
}
# llama.cpp's defaults of members that the daemon requires.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"xtc": {"threshold": 0.1}}
# The names of the daemon's members, for errors.
SAMPLER_NAMES = {
    f"{name}.{member}": (sent, f"options.{sent}")
    for name, members in _OBJECTS.items()
    for member, sent in members.items()
}


class Mirostat(Struct, kw_only=True):
    """Members of mirostat; 0 is off."""

    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None


class Samplers(Mirostat, kw_only=True):
    """Members of the samplers that llama-server has besides OpenAI's; null counts as absent."""

    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None


def sampler_params(request: Mirostat) -> dict[str, Any]:
    """Return the objects of the samplers that are on."""
    params: dict[str, Any] = {}
    for name, members in _OBJECTS.items():
        values = {member: getattr(request, sent, None) for member, sent in members.items()}
        if values[next(iter(members))]:
            sent = {member: value for member, value in values.items() if value is not None}
            params[name] = {**_DEFAULTS.get(name, {}), **sent}
    return params
