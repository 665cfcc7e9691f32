"""Decisions about steps: sequences, planner, costs, cached cells."""
