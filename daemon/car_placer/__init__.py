"""The parts of a seat on another machine: its key pair, and the relay between the daemon and its engine."""
