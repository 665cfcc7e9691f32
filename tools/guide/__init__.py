"""Trains, writes and checks the built-in guide model."""
