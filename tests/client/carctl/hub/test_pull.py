"""Downloads with a hub of the test's own: room, and how often a connection is made again."""

from collections.abc import Iterator
from hashlib import sha256
from io import StringIO
from pathlib import Path

import pytest

from car_client.carctl.hub.pull import Puller
from car_client.carctl.hub.remote import Cut, Hub, Piece, PullError, RemoteFile
from car_client.carctl.terminal.byte_progress import ProgressLines
from car_protocol.hub import HubFile

FILE = HubFile("owner/repo", "m.gguf")
CONTENT = b"0123456789" * 100


class ScriptedHub(Hub):
    """Has one file; each attempt to read it gives so many bytes more and then is cut."""

    def __init__(self, *attempts: int, longer_by: int = 0) -> None:
        self.attempts = list(attempts)
        self.longer_by = longer_by

    def look_up(self, file: HubFile, revision: str | None) -> RemoteFile:
        return RemoteFile(file, "url", "commit", len(CONTENT), sha256(CONTENT).hexdigest())

    def pieces(self, remote: RemoteFile, start: int) -> Iterator[Piece]:
        if not self.attempts:
            yield Piece(start, CONTENT[start:] + bytes(self.longer_by))
        elif (count := self.attempts.pop(0)) >= 0:
            yield Piece(start, CONTENT[start : start + count])
            raise Cut("reset by peer")


def puller(hub: Hub, folder: Path, free: int = 1 << 40) -> tuple[Puller, list[float]]:
    """Return one that notes its pauses."""
    pauses: list[float] = []
    return Puller(hub, folder, ProgressLines(StringIO()), free_bytes=lambda _: free, sleep=pauses.append), pauses


def test_attempts_that_bring_something_follow_at_once_and_others_after_growing_pauses(tmp_path: Path) -> None:
    ours, pauses = puller(ScriptedHub(100, 100, 0, 0, 100, 0), tmp_path)
    assert ours.pull(FILE).read_bytes() == CONTENT
    assert pauses == [1, 2, 1]


def test_a_hub_that_ends_every_answer_is_given_up_and_what_came_stays(tmp_path: Path) -> None:
    ours, pauses = puller(ScriptedHub(100, 0, 0, 0, 0, 0), tmp_path)
    with pytest.raises(PullError, match=r"broke off \(reset by peer\); run the same command again"):
        ours.pull(FILE)
    assert pauses == [1, 2, 4, 8]
    (part,) = (tmp_path / "owner" / "repo").iterdir()
    assert part.read_bytes() == CONTENT[:100]


def test_an_answer_that_ends_early_without_a_word_is_no_end_of_the_file(tmp_path: Path) -> None:
    ours, pauses = puller(ScriptedHub(-1), tmp_path)
    assert ours.pull(FILE).read_bytes() == CONTENT
    assert pauses == [1]


def test_a_file_that_is_longer_than_it_should_be_is_thrown_away(tmp_path: Path) -> None:
    ours, _ = puller(ScriptedHub(longer_by=1), tmp_path)
    with pytest.raises(PullError, match="longer than the hub declared"):
        ours.pull(FILE)
    assert list((tmp_path / "owner" / "repo").iterdir()) == []


def test_without_room_nothing_is_begun_and_both_figures_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    ours, _ = puller(ScriptedHub(), folder, free=999)
    with pytest.raises(PullError, match=f"not enough room in {folder}: 1 KiB needed, 999 B free"):
        ours.pull(FILE)
    assert not folder.parent.exists()


def test_what_is_there_already_needs_no_room(tmp_path: Path) -> None:
    with pytest.raises(PullError):
        puller(ScriptedHub(600, 0, 0, 0, 0, 0), tmp_path)[0].pull(FILE)
    with pytest.raises(PullError, match="400 B needed, 399 B free"):
        puller(ScriptedHub(), tmp_path, free=399)[0].pull(FILE)
    assert puller(ScriptedHub(), tmp_path, free=400)[0].pull(FILE).read_bytes() == CONTENT


def test_a_hub_without_a_checksum_is_not_believed(tmp_path: Path) -> None:
    class Unsure(ScriptedHub):
        def look_up(self, file: HubFile, revision: str | None) -> RemoteFile:
            return super().look_up(file, revision)._replace(etag="abc")

    with pytest.raises(PullError, match="gives no checksum of hf:"):
        puller(Unsure(), tmp_path)[0].pull(FILE)


def test_a_folder_that_nobody_may_write_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "owner").write_text("a file where a folder has to be")
    with pytest.raises(PullError, match=f"cannot write in {tmp_path}/owner/repo: not a directory"):
        puller(ScriptedHub(), tmp_path)[0].pull(FILE)
