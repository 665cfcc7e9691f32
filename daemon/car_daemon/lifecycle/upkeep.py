"""Upkeep: changed files are loaded again, costs measured on busy cores are measured again, old cells removed."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from car_base.host import defects
from car_base.host.event_log import log
from car_base.host.files import Weights
from car_base.host.private_folder import PrivateFolder
from car_base.host.timers import Periodic
from car_base.ipc.types import COST_CORES, STORED_AGE_S, STORED_SUFFIX
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.manager import ModelManager
from car_daemon.models.model_files import identify_files

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

    def __init__(self, pool: ModelPool, manager: ModelManager) -> None:
        self._pool = pool
        self._manager = manager
        self._replaced: dict[str, Weights] = {}  # by model: the files at the last look
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
            await asyncio.sleep(_PERIOD_S)
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
        found = await asyncio.to_thread(identify_files, entry.settings)
        changes = {change_of(weights, found) for weights in opened}
        if "overwritten" in changes:
            self._manager.restart(entry)
        # If it was the same a period ago, it is complete.
        elif "replaced" in changes and self._replaced.get(entry.name) == found and self._manager.reload(entry):
            log.warning("model.file_changed", model=entry.name, change="replaced")
        self._replaced[entry.name] = found


# A measurement takes a second, and the load of a large model some more, so it ends within the idle minute.
QUIET_S = 30.0


class QuietTime:
    """The time for which nothing has been going on: half a minute is enough, then twice as long each time.

    So a machine on which programs come and go has few loads for it.
    """

    def __init__(self) -> None:
        self._since: float | None = None  # in seconds of the caller's clock
        self._enough_s = QUIET_S

    def __repr__(self) -> str:
        return f"<QuietTime since={self._since}>"

    def update(self, now: float, *, quiet: bool) -> bool:
        """Take a reading into account; return whether it has been quiet for long enough."""
        if not quiet:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self._enough_s

    def used(self) -> None:
        """Begin anew, for twice as long."""
        self._since, self._enough_s = None, 2 * self._enough_s


def busy_threads(entry: ModelEntry) -> int:
    """Return the most threads of a model's engines that declared their capacity by costs of busy cores; 0 for none."""
    ready = [each.ready for each in entry.replicas if each.ready is not None and not each.placed]
    return max((each.threads for each in ready if each.policy == "measured" and COST_CORES in each.inputs), default=0)


class CurveRenewal:
    """Loads such a model again, one a second, once its requests and other programs have left the cores alone.

    `busy` says whether a model has work, `leaves` whether other programs leave a core to so many threads.
    """

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        reload: Callable[[ModelEntry], bool],
        *,
        busy: Callable[[str], bool],
        leaves: Callable[[int], bool],
        clock: Callable[[], float],
    ) -> None:
        self._entries = entries
        self._reload = reload
        self._busy = busy
        self._leaves = leaves
        self._clock = clock
        self._quiet = QuietTime()
        self._looks = Periodic(_PERIOD_S, self.look)

    def start(self) -> None:
        """Look once a second from now on, in the running event loop."""
        self._looks.start()

    def stop(self) -> None:
        """Look no more."""
        self._looks.stop()

    def look(self) -> None:
        """Load the first such model again if it has been quiet long enough."""
        entries = list(self._entries)
        found = next((each for each in entries if busy_threads(each)), None)
        idle = all(each.state not in ("loading", "draining") and not self._busy(each.name) for each in entries)
        quiet = found is not None and idle and self._leaves(busy_threads(found))
        if self._quiet.update(self._clock(), quiet=quiet) and found is not None and self._reload(found):
            self._quiet.used()
            log.info("curve.renewed", model=found.name)


_CELLS_PERIOD_S = 3600.0


class OldCells:
    """Looks through a folder of stored cells at the start and once an hour; `folder` returns it, None for none."""

    def __init__(self, folder: Callable[[], Path | None], wall_clock: Callable[[], float]) -> None:
        self._folder = folder
        self._wall_clock = wall_clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._look_on(), name="old cells")

    def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    async def _look_on(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the next look comes in an hour
                defects.report("cells.removal_failed", error)
            await asyncio.sleep(_CELLS_PERIOD_S)

    async def look(self) -> None:
        """Remove what is old now."""
        if (folder := self._folder()) is not None:
            removed = await asyncio.to_thread(remove_old, folder, self._wall_clock())
            if removed:
                log.info("cells.removed", files=removed)


def remove_old(folder: Path, now: float) -> int:
    """Remove the files of all models that were not used for a week; return their number.

    Links are not followed, and folders of other users are left alone. `now` is in seconds as the times of files.
    """
    return sum(_remove_old_of(place, now) for model in _folders(folder) for place in _folders(model))


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        # Nothing was stored yet, or another user's folder.
        return []


def _remove_old_of(place: Path, now: float) -> int:
    removed = 0
    # A folder that became unreadable meanwhile is one for the next look.
    with contextlib.suppress(OSError), PrivateFolder(place) as private:
        for name, _, modified_s in private.entries:
            if STORED_SUFFIX in name and now - modified_s > STORED_AGE_S:
                private.discard(name)
                removed += 1
    return removed
