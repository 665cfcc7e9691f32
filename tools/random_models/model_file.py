"""One GGUF file in the making."""

from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Weight = NDArray[np.float32]
Tensor = tuple[str, Weight]

TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


class ModelFile:
    """A file whose metadata is added first, through `metadata`, and whose tensors `write` adds last."""

    def __init__(self, path: Path | str, architecture: str, name: str, type: str = "f32") -> None:
        self._quantization, file_type = TYPES[type]
        self.metadata = gguf.GGUFWriter(path, architecture)
        self.metadata.add_name(f"random {name}")
        self.metadata.add_description("Random weights for tests and benchmarks: what it writes means nothing.")
        self.metadata.add_file_type(file_type)

    def write(self, tensors: Iterable[Tensor]) -> None:
        """Write the whole file; vectors are never quantized."""
        for name, weight in tensors:
            self._add(name, weight)
        self.metadata.write_header_to_file()
        self.metadata.write_kv_data_to_file()
        self.metadata.write_tensors_to_file()
        self.metadata.close()

    def _add(self, name: str, weight: Weight) -> None:
        if weight.ndim == 1:
            self.metadata.add_tensor(name, weight)
        else:
            quantized = gguf.quants.quantize(weight, self._quantization)
            self.metadata.add_tensor(name, quantized, raw_dtype=self._quantization)
