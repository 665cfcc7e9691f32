"""The HTTP door at the command line, and its service."""
