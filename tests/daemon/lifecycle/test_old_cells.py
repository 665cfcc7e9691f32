"""Stored cells of models that nobody loads any more go a week after their last use."""

import os
from pathlib import Path

from car_base.ipc.types import STORED_AGE_S
from car_daemon.lifecycle.upkeep import OldCells, remove_old

NOW = 2_000_000_000.0


def stored(folder: Path, name: str, age_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / name
    file.write_bytes(b"cells")
    os.utime(file, (NOW - age_s, NOW - age_s))
    return file


def test_files_go_a_week_after_their_last_use_whatever_their_model(tmp_path: Path) -> None:
    old = [stored(tmp_path / model / "cpu", "1000-a-b.cells", STORED_AGE_S + 1) for model in ("gone", "mine")]
    old.append(stored(tmp_path / "mine" / "gpu0", "1000-a-b.cells.77", STORED_AGE_S + 1))
    young = stored(tmp_path / "mine" / "cpu", "1000-a-c.cells", STORED_AGE_S - 1)
    assert remove_old(tmp_path, NOW) == 3
    assert not any(file.exists() for file in old)
    assert young.exists()


def test_files_of_others_and_what_links_lead_to_stay(tmp_path: Path) -> None:
    elsewhere = stored(tmp_path / "elsewhere" / "cpu", "1000-a-b.cells", STORED_AGE_S + 1)
    letter = stored(tmp_path / "cells" / "mine" / "cpu", "letter.txt", STORED_AGE_S + 1)
    (tmp_path / "cells" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cells" / "mine" / "gpu0").symlink_to(tmp_path / "elsewhere" / "cpu")
    (tmp_path / "cells" / "mine" / "cpu" / "1000-a-c.cells").symlink_to(elsewhere)
    assert remove_old(tmp_path / "cells", NOW) == 0
    assert elsewhere.exists()
    assert letter.exists()


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert remove_old(tmp_path / "cells", NOW) == 0
    assert not (tmp_path / "cells").exists()


async def test_the_folder_is_that_of_the_configuration_of_the_moment(tmp_path: Path) -> None:
    old = stored(tmp_path / "gone" / "cpu", "1000-a-b.cells", STORED_AGE_S + 1)
    folder: list[Path | None] = [None]
    cells = OldCells(lambda: folder[0], lambda: NOW)
    await cells.look()
    assert old.exists()
    folder[0] = tmp_path
    await cells.look()
    assert not old.exists()
