"""Tests against llama.cpp itself, on the built-in guide model."""
