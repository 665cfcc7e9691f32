"""The limit: the same context and samplers in a loop of its own process, without clients."""

import msgspec

from benchmarks.generator import run_module
from benchmarks.targets.case import Case
from car_client.carctl.load.figures import Figures


class BareLoop:
    """A plain loop that packs its rows."""

    name = "bare loop"

    def measure(self, case: Case) -> Figures:
        """Run the workload."""
        return msgspec.json.decode(run_module("benchmarks.bare_loop", case), type=Figures)
