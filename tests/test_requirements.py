"""The pinned install: every package of the extras, each with its hashes, from no index in particular."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = (ROOT / "requirements" / "daemon.txt").read_text(encoding="utf-8")
PIN = re.compile(r"^([a-z0-9-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def required() -> set[str]:
    """Return the names of the packages that the daemon's extras require, as an index writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [
        line for name in ("daemon", "engineless", "terminal", "hub", "images") for line in extras[name]
    ]
    names = {re.split(r"[^A-Za-z0-9_-]", line)[0].lower().replace("_", "-") for line in lines}
    return names - {"card-daemon"}


def test_every_package_is_pinned_with_its_hashes() -> None:
    pinned = {match[1] for match in PIN.finditer(PINS)}
    assert pinned >= required()
    rest = [line for line in PIN.sub("", PINS).splitlines() if not line.lstrip().startswith("#")]
    assert rest == []


def test_the_pins_name_no_index_and_no_place() -> None:
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted-host|@|\s/", PINS)
