"""Fair queueing: requests by user, process, tenant and label, each level served by least virtual time."""
