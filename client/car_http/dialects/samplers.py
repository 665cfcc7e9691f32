"""Samplers that llama-server and Ollama set by members of their own, and the daemon by one object each."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from car_http.dialects.common import converted
from car_protocol import sampling
from car_protocol.sampling import Dry, Fraction, Xtc

# The members of each object by the names of theirs; the first one turns the sampler on.
_OBJECTS: Mapping[str, Mapping[str, str]] = {
    "xtc": {"probability": "xtc_probability", "threshold": "xtc_threshold"},
    "dry": {name: f"dry_{name}" for name in ("multiplier", "base", "allowed_length", "penalty_last_n")}
    | {"sequence_breakers": "dry_sequence_breakers"},
    "mirostat": {"version": "mirostat", "tau": "mirostat_tau", "eta": "mirostat_eta"},
}
# llama.cpp's defaults of members that the daemon requires.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"xtc": {"threshold": 0.1}}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    name: {field.name: field.type for field in fields(kind)}
    for name, kind in (("xtc", Xtc), ("dry", Dry), ("mirostat", sampling.Mirostat))
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


def sampler_params(request: Mirostat, place: str = "") -> dict[str, Any]:
    """Return the objects of the samplers that are on; raises Problem with the member behind `place`."""
    params: dict[str, Any] = {}
    for name, members in _OBJECTS.items():
        values = {member: getattr(request, sent, None) for member, sent in members.items()}
        if values[next(iter(members))]:
            checked = {
                member: converted(value, _KINDS[name][member], place + members[member])
                for member, value in values.items()
                if value is not None
            }
            params[name] = {**_DEFAULTS.get(name, {}), **checked}
    return params
