"""Engine processes: launched, watched and restarted, and their cores."""
