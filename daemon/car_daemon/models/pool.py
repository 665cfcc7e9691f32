"""All model entries, by name."""

from collections.abc import Callable, Iterator

from msgspec import structs

from car_base.host.devices import AUTO
from car_daemon.models.entry import ModelEntry
from car_daemon.models.settings import ModelSettings
from car_protocol.errors import RpcError


class ModelPool:
    """The configured entries; `on_change` and `on_progress` are called with every entry that changes."""

    def __init__(
        self,
        settings: dict[str, ModelSettings],
        default: str,
        *,
        on_change: Callable[[ModelEntry], None],
        on_progress: Callable[[ModelEntry], None] = lambda _: None,
        auto: str = AUTO,
    ) -> None:
        self._on_change = on_change
        self._on_progress = on_progress
        self.auto = auto  # the device of entries without a stated one; `auto` until it is known
        # Entries are added by a reload and never removed.
        self._entries = {name: self._new(name, one, default=name == default) for name, one in settings.items()}
        self.default = self._entries[default]
        self.first_default = self.default  # the one whose failure ends the daemon
        self._aliases = _aliases(settings)

    def __repr__(self) -> str:
        return f"<ModelPool of {len(self._entries)}: {list(self)}>"

    def __iter__(self) -> Iterator[ModelEntry]:
        """Yield the entries, the default one first."""
        yield self.default
        yield from (entry for entry in self._entries.values() if not entry.default)

    @property
    def engine_pids(self) -> list[int]:
        """The processes of all engines, loading ones included."""
        return [replica.pid for entry in self for replica in entry.replicas if replica.pid is not None]

    def configure(self, settings: dict[str, ModelSettings]) -> None:
        """Add new entries; the settings of the others hold from their next load on."""
        for name, one in settings.items():
            if name not in self._entries:
                self._entries[name] = self._new(name, one, default=False)
            self._entries[name].configured = one.on(self.auto)
        for name in self._entries.keys() - settings.keys():
            entry = self._entries[name]
            entry.configured = structs.replace(entry.configured, aliases=())
        self._aliases = _aliases(settings)

    def place(self, device: str) -> None:
        """Have the entries without a stated device loaded on this one from now on."""
        self.auto = device
        for entry in self._entries.values():
            entry.configured = entry.configured.on(device)

    def use(self, name: str) -> None:
        """Make a configured entry the default one."""
        old, self.default = self.default, self._entries[name]
        if old is not self.default:
            old.default, self.default.default = False, True
            self.capacity_changed()

    def capacity_changed(self) -> None:
        """Count and report a change that clients see in the capacity of every model."""
        for entry in self:
            entry.capacity_changed()

    def named(self, name: str | None) -> ModelEntry:
        """Return an entry by its name or an alias, the default one for None; raises RpcError `model_unavailable`."""
        entry = (
            self.default if name is None else self._entries.get(name) or self._entries.get(self._aliases.get(name, ""))
        )
        if entry is None:
            raise RpcError("model_unavailable", why="unknown model")
        return entry

    def servable(self, name: str | None) -> ModelEntry:
        """Return an entry that is served or may be loaded; raises RpcError `model_unavailable`."""
        entry = self.named(name)
        if entry.state == "failed" and not entry.may_try_again:
            raise RpcError("model_unavailable", why=entry.reason)
        return entry

    def _new(self, name: str, settings: ModelSettings, *, default: bool) -> ModelEntry:
        return ModelEntry(
            name, settings.on(self.auto), default=default, on_change=self._on_change, on_progress=self._on_progress
        )


def _aliases(settings: dict[str, ModelSettings]) -> dict[str, str]:
    """Return the model of each alias."""
    return {alias: name for name, one in settings.items() for alias in one.aliases}
