"""Changes of a loaded model's files, and whether its engines end at once or first finish."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.host.files import FileIdentity, Weights
from car_daemon.lifecycle.upkeep import Change, change_of
from car_daemon.models.model_files import identify_files
from car_daemon.models.settings import ModelSettings


def file(inode: int = 1, size: int = 9, modified: int = 5, digest: bytes = b"a") -> FileIdentity:
    return FileIdentity(7, inode, size, modified, digest)


@pytest.mark.parametrize(
    ("loaded", "found", "change"),
    [
        ((file(),), (file(),), None),
        ((file(),), (file(size=8),), "overwritten"),
        ((file(),), (file(modified=6),), "overwritten"),
        ((file(),), (file(digest=b"b"),), "overwritten"),
        ((file(),), (file(inode=2),), "replaced"),
        ((file(),), (file(inode=2, size=8),), "replaced"),
        ((file(), file(inode=3)), (file(), file(inode=3, size=8)), "overwritten"),
        ((file(), file(inode=3)), (file(inode=2), file(inode=3, size=8)), "overwritten"),
        ((file(),), (None,), None),
        ((None,), (file(),), "replaced"),
    ],
)
def test_an_overwritten_file_is_told_from_a_replaced_one(
    loaded: Weights, found: Weights, change: Change | None
) -> None:
    assert change_of(loaded, found) == change


identities = st.builds(
    FileIdentity, st.just(1), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.sampled_from([b"a", b"b"])
)


@given(st.lists(identities, min_size=1, max_size=3), st.lists(identities, min_size=1, max_size=3))
def test_files_change_where_any_of_them_does(loaded: list[FileIdentity], found: list[FileIdentity]) -> None:
    found = (found * 3)[: len(loaded)]
    assert (change_of(tuple(loaded), tuple(found)) is None) == (loaded == found)


def test_all_parts_of_a_split_model_are_watched(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(bytes(number))
    found = identify_files(ModelSettings(tmp_path / "m-00001-of-00003.gguf"))
    assert [part.size for part in found if part is not None] == [1, 2, 3]
