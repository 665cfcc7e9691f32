"""Models to begin with: a dated table, and the rows of it that fit a machine's memory."""

import os
from typing import NamedTuple

# The built-in model, which answers first, and the way from it to another one.
GUIDE = "guide"
HINT = "the guide answers, which knows only card; your own model: carctl models suggest"
DATED = "2026-11"
# Of a machine's memory, what a model and its contexts may take; and what contexts and buffers take beside the weights.
_SHARE, _BESIDE, _BESIDE_GB = 0.75, 1.15, 0.6
_ROWS = 10
_GB = 1e9


class Suggestion(NamedTuple):
    """A repository of the hub: gigabytes of its Q4_K_M file and projector, its licence, and what it can beside chat."""

    repo: str
    size_gb: float
    licence: str
    can: tuple[str, ...]
    checked: bool = False  # the size was compared with a page of the hub

    @property
    def source(self) -> str:
        """The argument of `carctl models add`."""
        return f"hf:{self.repo}"

    @property
    def command(self) -> str:
        """The command that downloads and adds it."""
        return f"carctl models add {self.source}"

    @property
    def needs_gb(self) -> float:
        """Memory in gigabytes that a machine needs for it."""
        return round((self.size_gb * _BESIDE + _BESIDE_GB) / _SHARE, 1)


# The licences of Gemma 3 4B and Llama 3.3 were compared with pages of the hub; the others were not.
SUGGESTIONS = (
    Suggestion("bartowski/SmolLM2-135M-Instruct-GGUF", 0.1, "Apache-2.0", ()),
    Suggestion("Qwen/Qwen2.5-0.5B-Instruct-GGUF", 0.5, "Apache-2.0", ("tools",)),
    Suggestion("ggml-org/gemma-3-1b-it-GGUF", 0.8, "Gemma", (), checked=True),
    Suggestion("Qwen/Qwen2.5-1.5B-Instruct-GGUF", 1.1, "Apache-2.0", ("tools",)),
    Suggestion("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", 1.1, "Apache-2.0", ("fill",)),
    Suggestion("Qwen/Qwen3-4B-GGUF", 2.5, "Apache-2.0", ("tools", "thinking")),
    Suggestion("ggml-org/gemma-3-4b-it-GGUF", 3.3, "Gemma", ("images",), checked=True),
    Suggestion("Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", 4.7, "Apache-2.0", ("tools", "fill")),
    Suggestion("Qwen/Qwen3-8B-GGUF", 5.0, "Apache-2.0", ("tools", "thinking")),
    Suggestion("ggml-org/gemma-3-12b-it-GGUF", 8.2, "Gemma", ("images",)),
    Suggestion("Qwen/Qwen3-14B-GGUF", 9.0, "Apache-2.0", ("tools", "thinking")),
    Suggestion("ggml-org/gpt-oss-20b-GGUF", 12.1, "Apache-2.0", ("tools", "thinking"), checked=True),
    Suggestion("Qwen/Qwen3-30B-A3B-GGUF", 18.6, "Apache-2.0", ("tools", "thinking")),
    Suggestion("Qwen/Qwen3-32B-GGUF", 19.8, "Apache-2.0", ("tools", "thinking")),
    Suggestion("bartowski/Llama-3.3-70B-Instruct-GGUF", 42.5, "Llama 3.3", ("tools",), checked=True),
    Suggestion("ggml-org/gpt-oss-120b-GGUF", 63.4, "Apache-2.0", ("tools", "thinking")),
)


def suggested(memory: int) -> list[Suggestion]:
    """Return ten models for a machine's bytes of memory: the largest that fit, largest first, then the next larger."""
    fitting = [row for row in SUGGESTIONS if row.needs_gb * _GB <= memory]
    larger = [row for row in SUGGESTIONS if row not in fitting]
    chosen = fitting[-_ROWS:]
    return [*reversed(chosen), *larger[: _ROWS - len(chosen)]]


def memory_bytes() -> int:
    """Return the physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
