"""Models to begin with: a dated table, and the rows of it that fit a machine's memory and a purpose."""

import os
from datetime import date
from typing import Literal, NamedTuple, get_args

# The built-in model, which answers first, and the way from it to another one.
GUIDE = "guide"
HINT = "the guide answers, which knows only card; your own model: carctl models suggest"
DATED = "2026-11"
# The table's promise: half a year after its date newer models are likely.
_FRESH_MONTHS = 6
# Of a machine's memory, what a model and its contexts may take; and what contexts and buffers take beside the weights.
_SHARE, _BESIDE, _BESIDE_GB = 0.75, 1.15, 0.6
_ROWS = 10
_GB = 1e9
Kind = Literal["general", "code", "small", "vision", "embedding", "rerank", "decisions"]
Purpose = Literal["chat", "code", "agent", "decide", "embed"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
_KINDS: dict[Purpose, frozenset[Kind]] = {
    "chat": frozenset({"general", "small", "vision"}),
    "code": frozenset({"code"}),
    "agent": frozenset({"general", "code"}),
    "decide": frozenset({"decisions"}),
    "embed": frozenset({"embedding", "rerank"}),
}
_WRITES: frozenset[Kind] = frozenset({"general", "code", "small", "vision"})


class Suggestion(NamedTuple):
    """A repository of the hub: gigabytes of its file of this quantization and of its projector, and abilities."""

    repo: str
    size_gb: float
    licence: str
    architecture: str  # as its file names it
    kinds: tuple[Kind, ...]
    can: tuple[str, ...] = ()  # beside chat
    quant: str = "Q4_K_M"
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

    def serves(self, purpose: Purpose | None) -> bool:
        """Return whether it is for a purpose, without one whether it writes answers; an agent needs tools."""
        if purpose is None:
            return not _WRITES.isdisjoint(self.kinds)
        return not _KINDS[purpose].isdisjoint(self.kinds) and (purpose != "agent" or "tools" in self.can)


_FREE = "Apache-2.0"
_ALL = ("tools", "thinking", "images")
# Sizes without `checked` are computed from parameters or from other files of the same model: `suggest` marks them.
SUGGESTIONS = (
    Suggestion("bartowski/SmolLM2-135M-Instruct-GGUF", 0.1, _FREE, "llama", ("small",)),
    Suggestion("ggml-org/embeddinggemma-300M-GGUF", 0.3, "Gemma", "gemma-embedding", ("embedding",), quant="Q8_0"),
    Suggestion("Qwen/Qwen2.5-0.5B-Instruct-GGUF", 0.5, _FREE, "qwen2", ("small", "decisions"), ("tools",)),
    Suggestion("Qwen/Qwen3-Embedding-0.6B-GGUF", 0.6, _FREE, "qwen3", ("embedding",), quant="Q8_0"),
    Suggestion("ggml-org/Qwen3-Reranker-0.6B-Q8_0-GGUF", 0.6, _FREE, "qwen3", ("rerank",), quant="Q8_0"),
    Suggestion("LiquidAI/LFM2.5-1.2B-Instruct-GGUF", 0.7, "LFM 1.0", "lfm2", ("small",), ("tools",)),
    Suggestion("ggml-org/gemma-3-1b-it-GGUF", 0.8, "Gemma", "gemma3", ("small",), checked=True),
    Suggestion("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", 1.1, _FREE, "qwen2", ("code",), ("fill",)),
    Suggestion("Qwen/Qwen3-4B-GGUF", 2.5, _FREE, "qwen3", ("general", "decisions"), ("tools", "thinking")),
    Suggestion("unsloth/Qwen3.5-4B-GGUF", 3.4, _FREE, "qwen35", ("general", "vision", "decisions"), _ALL),
    Suggestion("unsloth/gemma-4-E2B-it-GGUF", 4.4, _FREE, "gemma4", ("general", "vision"), (*_ALL, "audio")),
    Suggestion("Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", 4.7, _FREE, "qwen2", ("code",), ("tools", "fill")),
    Suggestion("unsloth/gemma-4-E4B-it-GGUF", 6.0, _FREE, "gemma4", ("general", "vision"), (*_ALL, "audio")),
    Suggestion("unsloth/Qwen3.5-9B-GGUF", 6.6, _FREE, "qwen35", ("general", "vision", "decisions"), _ALL),
    Suggestion(
        "mistralai/Ministral-3-14B-Instruct-2512-GGUF",
        9.1,
        _FREE,
        "mistral3",
        ("general", "vision"),
        ("tools", "images"),
    ),
    Suggestion(
        "ggml-org/gpt-oss-20b-GGUF", 12.1, _FREE, "gpt-oss", ("general",), ("tools", "thinking"), "MXFP4", checked=True
    ),
    Suggestion("unsloth/Qwen3.6-27B-GGUF", 17.7, _FREE, "qwen35", ("general", "code", "vision"), _ALL),
    Suggestion("unsloth/gemma-4-26B-A4B-it-GGUF", 18.1, _FREE, "gemma4", ("general", "vision"), _ALL),
    Suggestion("unsloth/GLM-4.7-Flash-GGUF", 18.3, "MIT", "deepseek2", ("general", "code"), ("tools", "thinking")),
    Suggestion("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", 18.6, _FREE, "qwen3moe", ("code",), ("tools", "fill")),
    Suggestion("unsloth/Qwen3.6-35B-A3B-GGUF", 22.9, _FREE, "qwen35moe", ("general", "code", "vision"), _ALL),
    Suggestion("ggml-org/gpt-oss-120b-GGUF", 63.4, _FREE, "gpt-oss", ("general",), ("tools", "thinking"), "MXFP4"),
)


def suggested(memory: int, purpose: Purpose | None = None) -> list[Suggestion]:
    """Return up to ten models for bytes of memory: the largest that fit, largest first, then larger models."""
    rows = [row for row in SUGGESTIONS if row.serves(purpose)]
    fitting = [row for row in rows if row.needs_gb * _GB <= memory]
    larger = [row for row in rows if row not in fitting]
    chosen = fitting[-_ROWS:]
    return [*reversed(chosen), *larger[: _ROWS - len(chosen)]]


def is_old(today: date) -> bool:
    """Return whether the table is older than six months."""
    year, month = map(int, DATED.split("-"))
    return (today.year - year) * 12 + today.month - month > _FRESH_MONTHS


def memory_bytes() -> int:
    """Return the physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
