"""Tokens that are tried before they are known: what they are, how many pay."""
