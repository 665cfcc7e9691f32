"""One archive of llama.cpp's source, with all that a build of its libraries and its server reads."""

import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from tools.binding_source import download

# The most bytes of an archive, so that it can be copied to any machine.
MOST_BYTES = 30 << 20
_INSIDE = "vendor/llama.cpp"
# Files and folders that CMake reads for the libraries and the tools.
_KEPT = (
    *("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses", "src", "tools", "vendor"),
    "scripts/ui-assets.cmake",
)
# Parts of these that it does not read: the page of llama-server, media of tests, backends that are not offered.
_LEFT_OUT = (
    *("tools/ui/src", "tools/ui/static", "tools/ui/tests", "tools/ui/.storybook", "tools/ui/package-lock.json"),
    *(
        "tools/mtmd/tests",
        "tools/mtmd/test-1.jpeg",
        "tools/mtmd/test-2.mp3",
        "tools/mtmd/test-3.mp4",
        "tools/server/tests",
        "tools/server/bench",
    ),
    *(f"ggml/src/ggml-{maker}" for maker in ("cann", "et", "hexagon", "opencl", "openvino", "sycl", "webgpu")),
    *(f"ggml/src/ggml-{maker}" for maker in ("virtgpu", "zdnn", "zendnn")),
)


def kept(path: str) -> bool:
    """Return whether a file of llama.cpp, by its path inside it, belongs into the archive."""
    parts = PurePosixPath(path)
    return any(map(parts.is_relative_to, _KEPT)) and not any(map(parts.is_relative_to, _LEFT_OUT))


def inside(member: str) -> str | None:
    """Return the path inside llama.cpp of a member of the source distribution; None for other members."""
    _, _, path = member.partition("/")
    return path.removeprefix(_INSIDE + "/") if path.startswith(_INSIDE + "/") else None


def repack(distribution: Path, archive: Path, most: int = MOST_BYTES) -> None:
    """Write the files of a source distribution that a build reads; raises ValueError above `most` bytes."""
    with tarfile.open(distribution) as members, tarfile.open(archive, "w:xz") as chosen:
        for member in members:
            path = inside(member.name)
            if path is not None and member.isfile() and kept(path):
                member.name = f"llama.cpp/{path}"
                # Else a name of more than 100 characters stays as it was: the headers have it once more.
                member.pax_headers = {}
                chosen.addfile(member, members.extractfile(member))
    size = archive.stat().st_size
    if size > most:
        archive.unlink()
        raise ValueError(f"the archive has {size} bytes, at most {most} are allowed: leave out more in {__name__}")


def pack(archive: Path) -> None:
    """Download the source distribution of the installed binding, and write the archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        repack(download(Path(place)), archive)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive; returns the folder of the source."""
    with tarfile.open(archive) as members:
        # Python 3.11.2 has no filters.
        members.extraction_filter = getattr(tarfile, "data_filter", None)
        members.extractall(folder)
    return folder / "llama.cpp"
