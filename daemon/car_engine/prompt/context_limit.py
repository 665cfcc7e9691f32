"""The context of a model as a bound on prompts."""

from dataclasses import dataclass
from typing import Any

from car_base.ipc.refusal import Refusal

_REMEDY = "one sequence of {:,} tokens fits this memory: set sequences = 1 and context_tokens = {} for the model"


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """Tokens that prompt and answer may have together, and the bytes of the longest token.

    `alone` are the tokens that a single sequence could have in this memory.
    """

    tokens: int
    longest_piece: int
    alone: int = 0

    @property
    def most_bytes(self) -> int:
        """The bytes of the longest text that may fit."""
        return self.tokens * self.longest_piece

    def check_bytes(self, size: int, max_tokens: int | None = None) -> None:
        """Refuse text that fits under no tokenization, because tokenizing megabytes takes stack and seconds."""
        if size > self.most_bytes:
            raise self.exceeded(None, max_tokens)

    def exceeded(self, prompt_tokens: int | None, max_tokens: int | None) -> Refusal:
        """Return the refusal of a prompt; `prompt_tokens` is None if they were not counted."""
        data: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "max_tokens": max_tokens,
            "context_tokens": self.tokens,
        }
        if self.alone > self.tokens:
            data["longest_tokens"] = self.alone
            if (prompt_tokens or 0) < self.alone:
                data["why"] = _REMEDY.format(self.alone, self.alone)
        return Refusal("context_exceeded", **data)
