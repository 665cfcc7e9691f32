"""The daemon: one process a machine that hosts the models and declares the capacity."""
