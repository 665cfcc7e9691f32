"""What a model writes: its reasoning, its text and its tool calls, read piece by piece."""
