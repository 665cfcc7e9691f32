"""Sampling through llama.cpp: chains, candidates, adapters, log-probabilities."""
