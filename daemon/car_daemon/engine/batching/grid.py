"""The fixed cuts of a reproducible request: llama.cpp's results depend on how many rows are computed together."""

from dataclasses import dataclass

# Prompt tokens that are computed together. More pause the answers of others for longer; fewer cost more time a token.
GRID_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """Cuts that depend on the request alone: the prompt at multiples of `size`, its answer token by token.

    A parked request whose cells were dropped computes its answer so far by the same cuts.
    """

    prompt_tokens: int
    size: int = GRID_TOKENS

    def stretch(self, cells: int) -> int:
        """Return how many tokens after this many cells are computed together."""
        return min(self.size - cells % self.size, self.prompt_tokens - cells) if cells < self.prompt_tokens else 1
