"""The source distribution of llama.cpp's binding: it has the source of the llama.cpp that the binding ships."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

BINDING = "llama-cpp-python"


def download(folder: Path) -> Path:
    """Download the source distribution of the installed version; raises subprocess.CalledProcessError."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", BINDING]
    subprocess.run([*pip, "--dest", str(folder), f"{BINDING}=={version(BINDING)}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive
