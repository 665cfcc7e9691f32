"""Parsers of a model's output, piece by piece: reasoning, text, stop strings and tool calls."""
