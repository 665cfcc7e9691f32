"""What the soak is made of: clients that keep books, the load, and the faults."""
