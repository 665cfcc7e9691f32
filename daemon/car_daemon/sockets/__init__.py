"""Listening sockets, and who connects to them."""
