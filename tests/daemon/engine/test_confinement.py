"""What an engine gives up before it serves."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFINE = """
import resource, sys
from pathlib import Path
from car_daemon.engine.confinement import confine
confine(Path(sys.argv[1]))
print(resource.getrlimit(resource.RLIMIT_CORE))
"""


@pytest.mark.parametrize(("before", "after"), [("0", "500"), ("-300", "200"), ("700", "1000")])
def test_an_engine_leaves_no_core_and_goes_first_where_memory_runs_out(tmp_path: Path, before: str, after: str) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(before)
    done = subprocess.run([sys.executable, "-c", CONFINE, score], capture_output=True, text=True, check=True)
    assert (done.stdout, score.read_text()) == ("(0, 0)\n", after)


def test_where_no_such_score_exists_it_does_without(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CONFINE, tmp_path / "none"], check=True)
