"""The loop thread: commands, steps, running requests, parked requests."""
