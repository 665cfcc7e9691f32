"""Stored cells that were not used for a week are removed, also those of models that are never loaded again."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from car_base.host import defects
from car_base.host.event_log import log
from car_base.host.private_folder import PrivateFolder
from car_base.ipc.types import STORED_AGE_S, STORED_SUFFIX

_PERIOD_S = 3600.0


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
            await asyncio.sleep(_PERIOD_S)

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
