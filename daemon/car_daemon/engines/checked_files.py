"""The files of a model before an engine gets them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from car_daemon.host.event_log import log
from car_daemon.models.entry import ModelEntry
from car_daemon.models.model_files import Weights, identify_files
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings

if TYPE_CHECKING:
    from car_daemon.gguf.validation import Facts


class CheckedFiles:
    """Has a replica's files complete and checked before each life of its engine.

    `check` returns their facts; raises InvalidModel for files that must not reach an engine.
    """

    def __init__(
        self,
        entry: ModelEntry,
        replica: Replica,
        check: Callable[[ModelSettings], Sequence["Facts"]],
        settle_s: float,
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._check = check
        self._settle_s = settle_s
        self.warnings: list[str] = []  # parts of the files that only an engine can judge

    async def check(self) -> Sequence["Facts"]:
        """Check the files, and note their identities; return their facts. Raises InvalidModel."""
        self.warnings = []
        if self._entry.settings.placed:
            # They are another machine's, and checked there.
            return ()
        self._replica.weights = await self._settled()
        facts = await asyncio.to_thread(self._check, self._entry.settings)
        self.warnings = [warning for part in facts for warning in part.warnings]
        if self.warnings:
            log.warning("model.unknown_parts", model=self._entry.name, warnings=self.warnings)
        return facts

    async def _settled(self) -> Weights:
        """Return the identities of the model's files, of files that changed since the last life once they settled."""
        last, found = self._replica.weights, await asyncio.to_thread(identify_files, self._entry.settings)
        while last is not None and found != last:
            await asyncio.sleep(self._settle_s)
            last, found = found, await asyncio.to_thread(identify_files, self._entry.settings)
        return found
