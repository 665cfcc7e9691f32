"""The cost of one token in the daemon: Python calls, and changes from one file to another."""
