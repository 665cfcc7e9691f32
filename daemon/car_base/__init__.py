"""What the daemon, its engines and the placer share: the machine, the links between processes, capacity, the guide."""
