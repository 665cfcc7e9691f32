"""The fingerprint of what an answer depends on."""

import shutil
from pathlib import Path

from msgspec import structs

from car_base.guide import PATH
from car_engine.storage import fingerprint_of
from tests.engine.real_process import LOAD


def test_equal_configurations_have_the_same_fingerprint_wherever_their_file_lies(tmp_path: Path) -> None:
    copied = shutil.copy(PATH, tmp_path / "other.gguf")
    one, other = fingerprint_of(LOAD), fingerprint_of(structs.replace(LOAD, path=str(copied), threads=1))
    assert one == other
    assert one.startswith("card-")


def test_another_content_device_or_form_of_cells_has_another_fingerprint(tmp_path: Path) -> None:
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(PATH.read_bytes() + b"x")
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    loads = [
        LOAD,
        structs.replace(LOAD, path=str(changed)),
        structs.replace(LOAD, device="gpu0"),
        structs.replace(LOAD, kv_type="q8_0"),
        structs.replace(LOAD, chat_template=str(template)),
    ]
    assert len({fingerprint_of(load) for load in loads}) == len(loads)
