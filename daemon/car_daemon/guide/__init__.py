"""The built-in guide model: where its file is."""

from pathlib import Path

PATH: Path = Path(__file__).with_name("guide.gguf")
