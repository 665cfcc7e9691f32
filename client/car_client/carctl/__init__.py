"""`carctl`, the command line of the client."""
