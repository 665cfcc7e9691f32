"""The endpoints: a body in, calls of the daemon, an answer out."""
