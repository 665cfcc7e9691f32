"""The built-in guide model: the path of its file."""

from pathlib import Path

PATH: Path = Path(__file__).with_name("guide.gguf")
