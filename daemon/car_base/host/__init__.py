"""The operating system, read: memory, cores, devices, files, limits and timers."""
