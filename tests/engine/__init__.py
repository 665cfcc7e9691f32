"""Tests of how a step runs."""
