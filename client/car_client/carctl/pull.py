"""`carctl models pull`: a model file of the Hugging Face hub, whole and checked, into the folder of downloads."""

import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote

from car_client.carctl.byte_progress import Progress, progress_on
from car_client.carctl.download import PartFile, check_room, disk_faults, is_whole, part_path
from car_client.carctl.downloads import check_inside, folder_of, hub_name
from car_client.carctl.hub import Cut, Hub, PullError, RemoteFile
from car_protocol.hub import HubFile

# After so many attempts that brought nothing it is given up, after pauses that double from a second.
_ATTEMPTS = 5
_EVERYBODY_READS = 0o022


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what is downloaded."""
    parser.add_argument(
        "file", type=hub_name, metavar="hf:OWNER/REPO/FILE.gguf", help="of a model that is split, the first part"
    )
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: main)")


def run(options: Namespace) -> None:
    """Download a model and print the path of its file."""
    if options.system:
        # The service runs as another user, and has to read what root writes.
        os.umask(_EVERYBODY_READS)
    with progress_on(sys.stderr) as progress:
        place = Puller(Hub(), folder_of(system=options.system), progress).pull(options.file, options.revision)
        if not options.system:
            progress.say(f"serve it with: card --model {quote(str(options.file))}")
    print(place)


class Puller:
    """Brings models into a folder; `free_bytes` says how much its disk takes, `sleep` waits between attempts."""

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        progress: Progress,
        *,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._hub = hub
        self._folder = folder
        self._progress = progress
        self._free_bytes = free_bytes
        self._sleep = sleep

    def pull(self, file: HubFile, revision: str | None = None) -> Path:
        """Return the path of a model once all its files are there; raises PullError."""
        missing = [remote for remote in self._look_up(file, revision) if not self._is_there(remote)]
        check_room(self._folder, sum(map(self._still_to_come, missing)), self._free_bytes)
        with ExitStack() as open_parts:
            parts = [open_parts.enter_context(self._downloaded(remote)) for remote in missing]
            self._put_in_place(missing, parts)
        return file.under(self._folder)

    def _look_up(self, file: HubFile, revision: str | None) -> list[RemoteFile]:
        """Return all files of a model, at the commit of its first."""
        first, *others = file.parts()
        found = self._hub.look_up(first, revision)
        return [found, *(self._hub.look_up(other, found.commit) for other in others)]

    def _is_there(self, remote: RemoteFile) -> bool:
        place = remote.file.under(self._folder)
        check_inside(place, self._folder)
        there = is_whole(place, remote)
        if there:
            self._progress.say(f"{place.name} is there already")
        return there

    def _still_to_come(self, remote: RemoteFile) -> int:
        part = part_path(remote, remote.file.under(self._folder))
        return max(0, remote.size - part.stat().st_size) if part.is_file() else remote.size

    @contextmanager
    def _downloaded(self, remote: RemoteFile) -> Iterator[PartFile]:
        """Yield a file that is whole, and not yet in its place."""
        place = remote.file.under(self._folder)
        with PartFile.opened(remote, place) as part:
            if part.size > remote.size:
                part.cut(0)
            self._progress.begin(place.name, part.size, remote.size)
            self._fetch(remote, part)
            self._progress.say(f"{place.name}: comparing checksums")
            if not is_whole(part.path, remote):
                part.path.unlink()
                raise PullError(f"{remote.file} came with a wrong checksum, and was thrown away: try again")
            yield part

    def _put_in_place(self, remotes: Sequence[RemoteFile], parts: Sequence[PartFile]) -> None:
        """Put all files of a model in their places, the first one last: without it the others are no model."""
        places = [remote.file.under(self._folder) for remote in remotes]
        if len(places) > 1:
            with disk_faults(self._folder):
                places[0].unlink(missing_ok=True)
        for part, place in reversed(list(zip(parts, places, strict=True))):
            part.move_to(place)

    def _fetch(self, remote: RemoteFile, part: PartFile) -> None:
        """Read until the part has every byte, however often the connection ends."""
        failures = 0
        while part.size < remote.size:
            before = part.size
            try:
                self._read(remote, part)
                why = "it ended early"
            except Cut as cut:
                why = str(cut)
            failures = 0 if part.size > before else failures + 1
            if failures == _ATTEMPTS:
                raise PullError(f"the download broke off ({why}); the same command goes on where it ended")
            if failures:
                self._sleep(2.0 ** (failures - 1))

    def _read(self, remote: RemoteFile, part: PartFile) -> None:
        for start, data in self._hub.pieces(remote, part.size):
            if start + len(data) > remote.size:
                part.path.unlink()
                raise PullError(f"{remote.file} is longer than the hub said, and was thrown away: try again")
            part.write(start, data)
            self._progress.reached(part.size)
