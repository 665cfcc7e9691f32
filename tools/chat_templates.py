"""Fetch llama.cpp's chat templates into the user's cache: they are in the source distribution of its binding.

`python -m tools.chat_templates` downloads that once for the installed version (77 MB) and keeps the templates alone.
"""

import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from tools.binding_source import BINDING, download
from tools.real_model import cache_folder

_INSIDE = "/models/templates/"
# A folder for each version of the binding.
FOLDER = cache_folder() / "chat-templates"


def fetch() -> Path:
    """Return the installed version's folder, downloading it where missing; raises subprocess.CalledProcessError."""
    folder = FOLDER / version(BINDING)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            archive = download(Path(place))
            unpacked = Path(place) / "templates"
            unpacked.mkdir()
            _unpack(archive, unpacked)
            unpacked.rename(folder)
    return folder


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
