"""Model entries, the memory they share, and which models are loaded."""
