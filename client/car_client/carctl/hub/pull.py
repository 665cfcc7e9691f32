"""`carctl models pull`: downloads a model of the Hugging Face hub, whole and checked."""

import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote

from car_client.carctl.hub.folder import check_inside, folder_of, hub_name
from car_client.carctl.hub.part_file import PartFile, check_room, disk_faults, is_whole, part_path
from car_client.carctl.hub.remote import Cut, Hub, PullError, RemoteFile
from car_client.carctl.terminal.byte_progress import ByteProgress, progress_on
from car_protocol.hub import HubFile

# Attempts without a byte before the download is given up; the pauses between them double from 1 s.
_ATTEMPTS = 5
EVERYBODY_READS = 0o022


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", type=hub_name, metavar="hf:OWNER/REPO/FILE.gguf", help="the file; of a split model the first part"
    )
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: main)")


def run(options: Namespace) -> None:
    """Download a model and print the path of its file."""
    if options.system:
        # The service runs as another user, which has to read the files.
        os.umask(EVERYBODY_READS)
    with progress_on(sys.stderr) as progress:
        place = Puller(Hub(), folder_of(system=options.system), progress).pull(options.file, options.revision)
        if not options.system:
            progress.note(f"serve it with: card --model {quote(str(options.file))}")
    print(place)


class Puller:
    """Downloads models into a folder; `free_bytes` returns its disk's free bytes, `sleep` waits between attempts."""

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        progress: ByteProgress,
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
        """Download all missing files of a model; return the path of its first. Raises PullError."""
        first, *others = file.parts()
        found = self._hub.look_up(first, revision)
        # All parts are of the commit of the first one.
        remotes = [found, *(self._hub.look_up(other, found.commit) for other in others)]
        missing = [remote for remote in remotes if not self._is_there(remote)]
        check_room(self._folder, sum(map(self._missing_bytes, missing)), self._free_bytes)
        with ExitStack() as open_parts:
            parts = [open_parts.enter_context(self._downloaded(remote)) for remote in missing]
            self._put_in_place(missing, parts)
        return file.under(self._folder)

    def _is_there(self, remote: RemoteFile) -> bool:
        place = remote.file.under(self._folder)
        check_inside(place, self._folder)
        there = is_whole(place, remote)
        if there:
            self._progress.note(f"{place.name} is there already")
        return there

    def _missing_bytes(self, remote: RemoteFile) -> int:
        part = part_path(remote, remote.file.under(self._folder))
        return max(0, remote.size - part.stat().st_size) if part.is_file() else remote.size

    @contextmanager
    def _downloaded(self, remote: RemoteFile) -> Iterator[PartFile]:
        """Yield the part of a file once it is whole and checked, not yet moved to its place."""
        place = remote.file.under(self._folder)
        with PartFile.opened(remote, place) as part:
            if part.size > remote.size:
                part.truncate(0)
            self._progress.begin(place.name, part.size, remote.size)
            self._fetch(remote, part)
            self._progress.note(f"{place.name}: comparing checksums")
            if not is_whole(part.path, remote):
                part.path.unlink()
                raise PullError(f"{remote.file} came with a wrong checksum and was removed: try again")
            yield part

    def _put_in_place(self, remotes: Sequence[RemoteFile], parts: Sequence[PartFile]) -> None:
        """Move all files of a model to their places, the first one last, because without it the rest is not a model."""
        places = [remote.file.under(self._folder) for remote in remotes]
        if len(places) > 1:
            with disk_faults(self._folder):
                places[0].unlink(missing_ok=True)
        for part, place in reversed(list(zip(parts, places, strict=True))):
            part.move_to(place)

    def _fetch(self, remote: RemoteFile, part: PartFile) -> None:
        """Read until the part has every byte, over as many connections as that takes; raises PullError."""
        failures = 0
        while part.size < remote.size:
            before = part.size
            try:
                self._read(remote, part)
                reason = "it ended early"
            except Cut as cut:
                reason = str(cut)
            failures = 0 if part.size > before else failures + 1
            if failures == _ATTEMPTS:
                raise PullError(
                    f"the download broke off ({reason}); run the same command again to go on where it ended"
                )
            if failures:
                self._sleep(2.0 ** (failures - 1))

    def _read(self, remote: RemoteFile, part: PartFile) -> None:
        for start, data in self._hub.pieces(remote, part.size):
            if start + len(data) > remote.size:
                part.path.unlink()
                raise PullError(f"{remote.file} is longer than the hub declared and was removed: try again")
            part.write(start, data)
            self._progress.update(part.size)
