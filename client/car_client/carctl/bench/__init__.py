"""`carctl bench`, and the load generator that it shares with the project's benchmarks."""
