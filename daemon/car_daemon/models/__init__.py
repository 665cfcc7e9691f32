"""Model entries by name, the memory they share, and the decision which models are loaded."""
