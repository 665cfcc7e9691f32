"""The door's connections to the daemon: one call at a time each, read no faster than its client reads."""
