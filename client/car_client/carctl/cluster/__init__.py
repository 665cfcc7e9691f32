"""The cluster of machines at the command line: a machine joins it, its state is shown."""
