"""Model files with random weights: tiny ones for tests of what a model must have, and a real shape for benchmarks."""
