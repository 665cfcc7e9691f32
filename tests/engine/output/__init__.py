"""Tests of how a model's text is read."""
