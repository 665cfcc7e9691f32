"""One model's engines on other machines, by host: the sequences that each host may run under its memory pressure."""

from msgspec import Struct, field


class Share(Struct, eq=False):
    """One host's part of a model; `usable` is the part of its declared sequences that may be leased."""

    usable: float = 1.0
    declared: int = 0
    leased: int = 0
    engines: set[int] = field(default_factory=set)  # by number

    @property
    def most(self) -> int:
        """Sequences that may run at once: at least one, so that a pressed host finishes its work."""
        return max(1, int(self.declared * self.usable)) if self.declared else 0

    @property
    def free(self) -> int:
        """Sequences that may be leased now."""
        return max(0, self.most - self.leased)

    @property
    def shut(self) -> bool:
        """Whether pressure, and not a lack of free sequences, keeps requests away."""
        return self.usable < 1 and self.free == 0


class Hosts:
    """The shares of a model's hosts, and their sums, which change with one share at a time."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self.declared = 0
        self.leased = 0
        self.most = 0
        self.free = 0

    def __repr__(self) -> str:
        return f"<Hosts {len(self._shares)}, {self.leased}/{self.most} leased>"

    def add(self, host: str, engine: int, sequences: int, usable: float) -> Share:
        """Count an engine without leases; return its host's share."""
        share = self._shares.setdefault(host, Share())
        share.engines.add(engine)
        return self._change(share, declared=sequences, usable=usable)

    def remove(self, host: str, engine: int, sequences: int, leased: int) -> Share:
        """Count an engine and its leases no more; return its host's share."""
        share = self._shares[host]
        share.engines.remove(engine)
        if not share.engines:
            del self._shares[host]
        return self._change(share, declared=-sequences, leased=-leased)

    def engines(self, host: str) -> set[int]:
        """Return the numbers of a host's engines."""
        return self._shares[host].engines

    def lease(self, host: str, change: int) -> Share:
        """Count a lease, or its end; return the host's share."""
        return self._change(self._shares[host], leased=change)

    def press(self, host: str, usable: float) -> Share | None:
        """Let this part of a host's sequences be leased; return its share, None where it has none."""
        share = self._shares.get(host)
        return None if share is None else self._change(share, usable=usable)

    def _change(self, share: Share, *, declared: int = 0, leased: int = 0, usable: float | None = None) -> Share:
        most, free = share.most, share.free
        share.declared += declared
        share.leased += leased
        share.usable = share.usable if usable is None else usable
        self.declared += declared
        self.leased += leased
        self.most += share.most - most
        self.free += share.free - free
        return share
