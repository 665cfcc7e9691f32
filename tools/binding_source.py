"""Source distributions with llama.cpp's source in them, such as that of its binding."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

BINDING = "llama-cpp-python"


def download(folder: Path, package: str = BINDING, release: str | None = None) -> Path:
    """Download the source distribution of a release, by default of the installed one.

    Raises subprocess.CalledProcessError.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
    subprocess.run([*pip, "--dest", str(folder), f"{package}=={release or version(package)}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive
