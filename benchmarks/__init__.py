"""Load generator and comparisons; nothing here is a test."""
