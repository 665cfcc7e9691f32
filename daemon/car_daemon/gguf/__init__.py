"""GGUF files: headers read, bounded and validated."""
