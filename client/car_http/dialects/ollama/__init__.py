"""Ollama's dialect."""
