"""Tests of `carctl adopt`."""
