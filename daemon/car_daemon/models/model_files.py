"""The files of a model: the parts of a split one, its adapters, projector and chat template, and their check."""

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from car_base.host.event_log import log
from car_base.host.files import Weights, identify, with_parts
from car_daemon.gguf.invalid import Flaw, InvalidModel

if TYPE_CHECKING:
    from car_daemon.gguf.validation import HeaderFacts
    from car_daemon.models.entry import ModelEntry
    from car_daemon.models.replica import Replica
    from car_daemon.models.settings import ModelSettings


class ModelFiles:
    """Checks the files of models before an engine opens them; headers are read again once one of the files changed.

    So a load reads them once: its estimate of memory, and the lives of all its engines, go by the same facts. `read`
    returns them; raises InvalidModel.
    """

    def __init__(self, read: "Callable[[ModelSettings], list[HeaderFacts]] | None" = None) -> None:
        self._read = read or check_files
        self._checked: dict[Path, tuple[object, list[HeaderFacts]]] = {}  # by the path of the model, of the last check

    def __repr__(self) -> str:
        return f"<ModelFiles of {len(self._checked)} models>"

    def check(self, settings: "ModelSettings") -> "list[HeaderFacts]":
        """Return the facts of the model's own files after a check of all files; raises InvalidModel."""
        roles = (tuple(settings.adapters.items()), settings.projector, settings.chat_template)
        found = tuple(map(identify, (*with_parts(settings.path), *settings.beside)))
        known = self._checked.get(settings.path)
        if known is not None and known[0] == (roles, found):
            return known[1]
        facts = self._read(settings)
        # Nobody knows whether a file that could not be read has changed.
        if None not in found:
            self._checked[settings.path] = (roles, found), facts
        return facts


class CheckedFiles:
    """Has a replica's files complete and checked before each life of its engine.

    `check` returns their facts; raises InvalidModel for files that must not reach an engine.
    """

    def __init__(
        self,
        entry: "ModelEntry",
        replica: "Replica",
        check: "Callable[[ModelSettings], Sequence[HeaderFacts]]",
        settle_s: float,
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._check = check
        self._settle_s = settle_s
        self.warnings: list[str] = []  # parts of the files that only an engine can judge

    async def check(self) -> "Sequence[HeaderFacts]":
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


def check_files(settings: "ModelSettings") -> "list[HeaderFacts]":
    """Return the facts of the model's own files after a check of all files; raises InvalidModel."""
    from car_daemon.gguf.validation import check_adapter, check_projector, check_regular

    if settings.pull is not None and not os.path.isfile(settings.path):
        raise InvalidModel(Flaw.NOT_DOWNLOADED)
    facts = check_model(settings.path)
    for name, path in settings.adapters.items():
        _check_beside(f"the adapter {name}", check_adapter, path)
    if settings.projector is not None:
        _check_beside("the projector", check_projector, settings.projector)
    if settings.chat_template is not None:
        _check_beside("the chat template", check_regular, settings.chat_template)
    return facts


def _check_beside(role: str, check: Callable[[Path], None], path: Path) -> None:
    try:
        check(path)
    except InvalidModel as invalid:
        raise InvalidModel(invalid.reason, invalid.detail, role=role) from None


def identify_files(settings: "ModelSettings") -> Weights:
    """Return the identities of all parts of a model."""
    return tuple(map(identify, with_parts(settings.path)))


def check_model(path: Path) -> "list[HeaderFacts]":
    """Return the facts of all files of a model; raises InvalidModel."""
    # Imported here because a daemon answers its first request some milliseconds sooner without it.
    from car_daemon.gguf.validation import check

    first = check(path)
    # A header may claim more parts than there are, and a name too.
    return [first, *(check(other) for other in islice(with_parts(path), 1, max(1, first.parts)))]
