"""Configurations of applications."""
