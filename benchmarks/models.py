"""The models that are measured: random weights, generated once."""

from pathlib import Path

from tools.random_model import generate

OUT = Path(__file__).parent / "out"


def random_model(kind: str, preset: str = "135m") -> Path:
    """Return a random-weight model of a preset's dimensions in a quantization."""
    path = OUT / f"random-{preset}-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        print(f"generating {path.name} ...", flush=True)
        generate(path, preset=preset, type=kind)
    return path
