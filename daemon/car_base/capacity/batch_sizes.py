"""Batch sizes by the device that computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Rows of one call of llama.cpp (`n_batch`), and of one graph in it (`n_ubatch`), on which its buffers depend.

    `texts` is the most tokens of short texts that are embedded together.
    """

    call: int
    graph: int
    texts: int

    def for_sequences(self, sequences: int) -> "BatchSizes":
        """Return sizes of whole rounds: some models with states compute an equal number of rows of each sequence."""
        call, graph = (-(-size // sequences) * sequences for size in (self.call, self.graph))
        return BatchSizes(call, graph, self.texts)


BATCH_SIZES: Mapping[DeviceKind, BatchSizes] = {
    # A CPU computes in proportion to the rows from about 64 on, so a longer call would only delay the next decision.
    # More texts in a batch share one attention matrix, mostly masked, and pause streams for longer.
    "cpu": BatchSizes(512, 512, 64),
    # A GPU has a fixed cost a call: four graphs go out in one. The graph stays, because the planned memory counts it.
    "gpu": BatchSizes(2048, 512, 512),
}
