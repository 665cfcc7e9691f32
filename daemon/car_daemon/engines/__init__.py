"""Engine processes: launched, watched and restarted, and the cores divided between them."""
