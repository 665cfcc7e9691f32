"""Scheduling as pure decisions: request states, queue, fairness, gate."""
