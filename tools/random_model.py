"""Write a llama-architecture GGUF with random weights, for benchmarks: `python tools/random_model.py -o PATH`.

The text that such a model writes is nonsense, but always printable ASCII; it costs what a real model of the same
shape costs. `tools/random_models/` also has models for tests of what not every model can do.
"""

import argparse
import sys
from pathlib import Path

if not __package__:
    # A script finds only what lies beside it.
    sys.path.append(str(Path(__file__).parents[1]))

from tools.random_models.llama import generate
from tools.random_models.model_file import TYPES
from tools.random_models.shape import PRESETS

__all__ = ["generate"]


def main() -> None:
    """Parse the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="135m")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    generate(arguments.output, preset=arguments.preset, type=arguments.type, seed=arguments.seed)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
