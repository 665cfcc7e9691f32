"""Tests of who runs."""
