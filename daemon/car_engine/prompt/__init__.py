"""Prompts: conversations rendered, images placed, constraints compiled, texts turned into tokens."""
