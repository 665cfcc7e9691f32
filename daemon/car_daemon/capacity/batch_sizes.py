"""Batch sizes by the device that computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Rows of one call of llama.cpp (`n_batch`), and of one graph in it (`n_ubatch`), on which its buffers depend."""

    call: int
    graph: int

    def for_sequences(self, sequences: int) -> "BatchSizes":
        """Return sizes of whole rounds: some models with states compute an equal number of rows of each sequence."""
        return BatchSizes(*(-(-size // sequences) * sequences for size in (self.call, self.graph)))


BATCH_SIZES: Mapping[DeviceKind, BatchSizes] = {
    # A CPU computes in proportion to the rows from about 64 on, so a longer call would only delay the next decision.
    "cpu": BatchSizes(512, 512),
    # A GPU has a fixed cost a call: four graphs go out in one. The graph stays, because the planned memory counts it.
    "gpu": BatchSizes(2048, 512),
}
