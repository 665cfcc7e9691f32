"""The terminal: keys, lines, screens, progress, and text that cannot control it."""
