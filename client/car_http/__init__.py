"""The HTTP door: OpenAI's, Anthropic's and Ollama's dialects in front of the daemon's socket."""
