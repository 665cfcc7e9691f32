"""Decisions about steps: sequences, planner, costs, cached cells; free of I/O, clock, threads and llama_cpp."""
