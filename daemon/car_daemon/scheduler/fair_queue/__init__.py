"""Fair queueing: requests by user, process and label, each level served by least virtual time."""
