"""Engines on other machines: the placer process, and connections."""
