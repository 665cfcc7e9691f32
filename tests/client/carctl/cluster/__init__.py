"""The cluster at the command line."""
