"""A sample of the folder of hostile model files (`python -m tools.hostile_models` tries all of it)."""

from pathlib import Path

import pytest

from car_daemon.gguf.invalid import InvalidModel
from car_daemon.gguf.validation import check
from tests.pace import lateness_beside
from tools.hostile_models.folder import bases, hostile_files, with_template
from tools.hostile_models.templates import TEMPLATES
from tools.hostile_models.trial import run


def test_a_hostile_template_lies_in_a_file_that_is_sound_otherwise(tmp_path: Path) -> None:
    base = bases(tmp_path)[0]
    for template in TEMPLATES.values():
        (tmp_path / "m.gguf").write_bytes(with_template(base, template))
        assert check(tmp_path / "m.gguf").architecture == "llama"


def test_the_folder_has_sixty_templates_and_damaged_headers_of_three_architectures(tmp_path: Path) -> None:
    files = dict(hostile_files(tmp_path, templates=60, headers=90, values=0, cuts=6))
    assert len(TEMPLATES) == len([name for name in files if name.startswith("template")]) == 60
    # A fault may write the byte that was there.
    assert len(set(files.values())) > 150
    sound = 0
    for name, data in files.items():
        (tmp_path / "m.gguf").write_bytes(data)
        try:
            check(tmp_path / "m.gguf")
        except InvalidModel:
            continue
        sound += name.startswith("header")
    assert sound > 0, "some damage has to pass the checks, and reach an engine"


def test_no_hostile_value_ends_a_check_without_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    valid = refused = 0
    for _, data in hostile_files(tmp_path, templates=0, headers=0, values=120, cuts=0):
        path.write_bytes(data)
        try:
            check(path)
            valid += 1
        except InvalidModel:
            refused += 1
    assert valid + refused == 120
    assert min(valid, refused) > 20


@pytest.mark.slow
def test_hostile_models_cost_their_own_requests_alone(folder: Path) -> None:
    for name, data in hostile_files(folder, templates=6, headers=15, values=8, cuts=4):
        (folder / f"{name}.gguf").write_bytes(data)
    with lateness_beside() as late:
        report = run(folder)
    assert report.faults == []
    assert sum(report.outcomes.values()) == 33
    assert report.chunks > 0
    assert report.gap_s <= 1.0 * max(late)
    assert max(report.deaths.values(), default=0) <= 2
