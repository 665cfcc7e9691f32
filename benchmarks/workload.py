"""What the benchmarks ask for: prompts of a length, answers of a length, streams in a closed loop."""

import argparse
import random
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workload:
    """`streams` clients, each asking `rounds` times: prompts and answers of these many tokens."""

    streams: int
    rounds: int
    prompt_tokens: int
    answer_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all answers together."""
        return self.streams * self.rounds * self.answer_tokens

    def prompt(self, stream: int, turn: int) -> list[int]:
        """Return a prompt that no other turn has."""
        chance = random.Random(stream * 10_000 + turn)
        return [chance.randrange(300, 1000) for _ in range(self.prompt_tokens)]

    def as_arguments(self) -> list[str]:
        """Return the arguments that `read_arguments` takes."""
        return [str(self.streams), str(self.rounds), str(self.prompt_tokens), str(self.answer_tokens)]


def read_arguments() -> tuple[Workload, Path]:
    """Read a workload and a path from the command line."""
    parser = argparse.ArgumentParser()
    for name in ("streams", "rounds", "prompt_tokens", "answer_tokens"):
        parser.add_argument(name, type=int)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    return Workload(given.streams, given.rounds, given.prompt_tokens, given.answer_tokens), given.path
