"""The folder of what may be computed again."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of measurements: the service manager's, else the user's."""
    if given := env.get("CACHE_DIRECTORY"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "car"
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "car"
