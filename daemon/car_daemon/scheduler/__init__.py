"""Scheduling as pure decisions: request states, queue, fairness, gate; no I/O, clock, thread or asyncio."""
