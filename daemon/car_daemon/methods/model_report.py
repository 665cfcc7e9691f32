"""Model objects, as clients of several users may read them."""

from collections.abc import Callable
from typing import Any

from car_daemon.models.abilities import Abilities
from car_daemon.models.entry import ModelEntry
from car_daemon.models.pool import ModelPool
from car_daemon.scheduler.gate import Gate
from car_daemon.sockets.peer import Peer
from car_protocol.models import Model


class ModelReport:
    """Model objects; the users `admins` get the path of a model's file, others the file's name."""

    def __init__(
        self, pool: ModelPool, gate: Gate, admins: Callable[[], set[int]], abilities: Abilities | None = None
    ) -> None:
        self.pool = pool
        self._gate = gate
        self._admins = admins
        self.abilities = abilities or Abilities()

    def of(self, entry: ModelEntry, peer: Peer) -> Model:
        """Return the model object of an entry for a client."""
        return Model(**self.facts(entry, admin=peer.uid in self._admins()))

    def facts(self, entry: ModelEntry, *, admin: bool) -> dict[str, Any]:
        """Return the members of a model object."""
        ready, path = entry.replicas.ready, entry.settings.path
        return {
            "name": entry.name,
            "aliases": list(entry.configured.aliases),
            "defaults": entry.configured.defaults,
            "path": str(path) if admin else path.name,
            "state": entry.state,
            "default": entry.default,
            "pinned": entry.pinned,
            "size_bytes": entry.size_bytes,
            "capacity": self._gate.capacity(entry.name),
            "context_tokens": ready.context_tokens if ready else None,
            "adapters": sorted(entry.settings.adapters),
            "can": self.abilities.of(entry),
            "device": entry.replicas.device,
            "replicas": len(entry.replicas),
            "place": entry.settings.place,
            "up": len(entry.replicas.serving),
            "waiting_for": next((each.waiting_for for each in entry.replicas if each.waiting_for), None),
            "loaded_at": entry.loaded_at,
            "last_used_at": entry.last_used_at,
            "reason": entry.reason,
        }
