"""How a step runs: sequences, step planner, costs. Decides only: no I/O, clock, thread or llama_cpp."""
