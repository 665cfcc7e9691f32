"""The limit: the same context and samplers in a loop of its own process, without clients."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from benchmarks.targets.case import Case, Measure
from car_client.carctl.load.figures import Figures
from car_client.carctl.load.workload import Workload

COMMAND = (sys.executable, "-m", "benchmarks.bare_loop")


class BareLoop:
    """A plain loop that packs its rows."""

    name = "bare loop"

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        """Run it with the context of a case; it says when it is ready."""
        with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            _ask(process, case)
            yield partial(_measured, process)
            process.stdin.close()


def _measured(process: "subprocess.Popen[bytes]", workload: Workload) -> Figures:
    return msgspec.json.decode(_ask(process, workload), type=Figures)


def _ask(process: "subprocess.Popen[bytes]", question: Case | Workload) -> bytes:
    """Return the line that answers a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(question) + b"\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError("the bare loop ended")
    return line
