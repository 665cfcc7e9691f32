"""How much memory a model takes, estimated by the headers of its files before an engine sees them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from car_daemon.devices import CPU
from car_daemon.models.entry import ModelSettings
from car_daemon.models.parts import check_model

if TYPE_CHECKING:
    from car_daemon.models.soundness import Facts

# What an engine that decides by itself keeps at least.
_LEAST_CONTEXT = 2048
# Rows that llama.cpp computes at once; each has its logits, and about so many vectors of floats on its way.
_BATCH_ROWS = 512
_VECTORS = 8
_FLOAT_BYTES = 4
# The interpreter, llama.cpp itself and its smaller tables.
_PROCESS_BYTES = 64 << 20


class Footprint(Struct, frozen=True):
    """Bytes of weights, of the KV cache of one sequence of each replica, and of everything else."""

    weights: int
    kv: int
    others: int

    @property
    def total(self) -> int:
        """All of them: less is not enough to serve one request."""
        return self.total_with(self.kv)

    def total_with(self, kv: int) -> int:
        """Return all bytes with a KV cache of this size."""
        return self.weights + kv + self.others


def read_footprint(settings: ModelSettings) -> Footprint:
    """Read the headers; raises UnsoundModel."""
    return estimate(check_model(settings.path), settings)


def estimate(parts: "list[Facts]", settings: ModelSettings) -> Footprint:
    """Return what all replicas of a model of these files take of the host's memory; those on a GPU take less."""
    first = parts[0]
    context = settings.context_tokens or min(first.context_length, _LEAST_CONTEXT)
    row = (first.vocabulary or 0) + _VECTORS * first.embedding_length
    beside = _file_bytes([*settings.adapters.values(), *([settings.projector] if settings.projector else [])])
    replicas, on_host = len(settings.places), settings.places.count(CPU)
    return Footprint(
        # Most of the weights are repacked when they are loaded: processes do not share them.
        weights=on_host * sum(part.tensor_bytes for part in parts) + replicas * beside,
        kv=on_host * (context * first.kv_bytes_per_token + first.state_bytes),
        others=replicas * (_BATCH_ROWS * row * _FLOAT_BYTES + _PROCESS_BYTES),
    )


def _file_bytes(paths: Iterable[Path]) -> int:
    """Sum up the files that are there; the engine refuses a model of which one is missing."""
    return sum(path.stat().st_size for path in paths if path.is_file())
