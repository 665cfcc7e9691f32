"""A watch of the files of loaded models: llama.cpp maps them, so a file that is overwritten changes its model."""

import asyncio
from collections.abc import Callable
from typing import Literal

from car_base.host import defects
from car_base.host.event_log import log
from car_base.host.files import Weights
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.manager import ModelManager
from car_daemon.models.model_files import identify_files
from car_daemon.models.settings import ModelSettings

_PERIOD_S = 1.0
Change = Literal["overwritten", "replaced"]


def change_of(loaded: Weights, found: Weights) -> Change | None:
    """Return how files differ from the loaded files; None if they do not, or if one is missing.

    An overwritten file is the loaded one with another content. A replaced one is another file, and the engine keeps the
    loaded one.
    """
    if loaded == found or None in found or len(loaded) != len(found):
        return None
    pairs = [(old, new) for old, new in zip(loaded, found, strict=True) if old is not None and new is not None]
    if any(old.place == new.place and old != new for old, new in pairs):
        return "overwritten"
    return "replaced"


class WeightsWatch:
    """Loads a model again whose files changed: at once after an overwriting, else once its engines have finished."""

    def __init__(
        self,
        pool: ModelPool,
        manager: ModelManager,
        *,
        identify: Callable[[ModelSettings], Weights] = identify_files,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._pool = pool
        self._manager = manager
        self._identify = identify
        self._period_s = period_s
        self._replaced: dict[str, Weights] = {}  # by model: files that were found in place of the loaded ones
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        self._task = asyncio.create_task(self._watch(), name="weights watch")

    def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            for entry in list(self._pool):
                try:
                    await self.look(entry)
                except Exception as error:  # noqa: BLE001 - the next look comes in a second
                    defects.report("weights.watch_failed", error, model=entry.name)

    async def look(self, entry: ModelEntry) -> None:
        """Compare the files of a model with the files that its engines opened."""
        opened = entry.replicas.opened
        if not opened:
            return
        found = await asyncio.to_thread(self._identify, entry.settings)
        changes = {change_of(weights, found) for weights in opened}
        if "overwritten" in changes:
            self._manager.restart(entry)
        # Where it was the same a period ago, it is complete.
        elif "replaced" in changes and self._replaced.get(entry.name) == found and self._manager.reload(entry):
            log.warning("model.file_changed", model=entry.name, change="replaced")
        self._replaced[entry.name] = found
