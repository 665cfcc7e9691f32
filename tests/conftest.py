"""Settings of all tests."""

import gc
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Every run draws the same examples, so what passed once passes again; `--hypothesis-profile default` draws others.
# No example fails for its time: that depends on what else the machine does.
_ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _ANY_PACE, derandomize=True)
# For `make fast`: a tenth of the examples, unless a test says how many it needs.
settings.register_profile("quick", _ANY_PACE, derandomize=True, max_examples=10)
settings.load_profile("same")

# Tests in the background of a shell ignore interrupts, under `nohup` hang-ups, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where no bytecode may be left beside the sources, as in many containers, each of the hundreds of processes that the
# tests start would compile all that it imports, which takes longer than all else that it does: it is kept elsewhere.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(tempfile.gettempdir()) / f"card-tests-{os.getuid()}" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over thousands of tests that stay to the end: it takes a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took longest: what to look at first if the suite becomes slow."""
    every: Iterable[object] = chain.from_iterable(terminalreporter.stats.values())
    if files := slowest_files(report for report in every if isinstance(report, pytest.TestReport)):
        terminalreporter.section("the slowest files")
        for file, seconds in files:
            terminalreporter.write_line(f"{seconds:6.1f} s  {file}")


def slowest_files(reports: Iterable[pytest.TestReport], most: int = 10) -> list[tuple[str, float]]:
    """Return the files with the most seconds of tests and fixtures, and those seconds."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return sorted(seconds.items(), key=lambda entry: -entry[1])[:most]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket on every platform."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        yield Path(name)
