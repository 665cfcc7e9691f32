"""The GGUF file format: headers read, bounded and validated; imports nothing else of the project but `host`."""
