"""The engine: the child process that owns one model's context and runs its steps."""
