"""The configuration: flags, environment, file and defaults."""
