"""The parts of the soak: clients that keep books, the load, and the faults."""
