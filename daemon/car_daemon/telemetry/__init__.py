"""Logs, metrics, latencies and defects; they never contain a prompt, an answer or an id."""
