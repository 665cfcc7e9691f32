"""Engines on other machines: the placer process, and the connections to placed engines."""
