"""The replicas of one model, together."""

from operator import attrgetter

from car_daemon.ipc.frames import Ready
from car_daemon.models.model_files import Weights
from car_daemon.models.replica import Replica


class ReplicaGroup(list[Replica]):
    """The replicas of one model, with the facts that hold of all of them."""

    @property
    def serving(self) -> list[Replica]:
        """The replicas whose engine is up."""
        return [replica for replica in self if replica.ready is not None]

    @property
    def opened(self) -> set[Weights]:
        """The files that their engines opened, mostly the same ones."""
        return {each.weights for each in self if each.engine is not None and each.weights is not None}

    @property
    def ready(self) -> Ready | None:
        """The READY frame of the engine with the longest context, which a prompt may fill; None while none is up."""
        up = [replica.ready for replica in self if replica.ready is not None]
        return max(up, key=attrgetter("context_tokens"), default=None)

    @property
    def progress(self) -> float:
        """The loaded part, 0 to 1."""
        return sum(replica.progress for replica in self) / len(self)

    @property
    def devices(self) -> list[str]:
        """Their devices, now or after a load, each one once; without the failed ones, unless all failed."""
        hopeful = [replica for replica in self if replica.state != "failed"]
        return list(dict.fromkeys(replica.serves_on for replica in hopeful or self))

    @property
    def device(self) -> str:
        """All of their devices in one word."""
        return "+".join(dict.fromkeys(replica.serves_on for replica in self))
