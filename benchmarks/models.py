"""The models that are measured: random weights, generated once, and real ones."""

from pathlib import Path

from tools.random_model import generate
from tools.real_model import MODELS, fetch

OUT = Path(__file__).parent / "out"


def model_file(kind: str, preset: str = "135m") -> Path:
    """Return a real model by its name, or random weights of a preset's dimensions in a quantization."""
    if kind in MODELS:
        return fetch(MODELS[kind])
    path = OUT / f"random-{preset}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset=preset, type=kind)
    return path
