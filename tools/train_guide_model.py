"""Train the built-in guide model and write it as a GGUF file: `python -m tools.train_guide_model`."""

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tools.guide import corpus, model_file, tokenizer, training
from tools.guide.network import Parameters, Shape
from tools.guide.samples import Sampler

OUTPUT = Path(__file__).parents[1] / "daemon" / "car_base" / "guide" / "guide.gguf"


def main() -> None:
    """Parse the arguments, train, write, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=1024)
    arguments = parser.parse_args()

    started = time.monotonic()
    known = corpus.load()
    tokens = tokenizer.train(known.texts(), arguments.vocabulary)
    shape = Shape(vocabulary=len(tokens.tokens))
    sampler = Sampler(known, tokens, arguments.seed)
    parameters = training.train(sampler, shape, steps=arguments.steps, seed=arguments.seed)
    model_file.write(arguments.output, _arrays(parameters), shape, tokens)
    count = sum(parameter.numel() for parameter in parameters.values())
    print(
        f"{arguments.output}: {arguments.output.stat().st_size} bytes, {count} parameters, "
        f"{shape.vocabulary} tokens, trained in {time.monotonic() - started:.0f} s"
    )


def _arrays(parameters: Parameters) -> dict[str, NDArray[np.float32]]:
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


if __name__ == "__main__":
    main()
