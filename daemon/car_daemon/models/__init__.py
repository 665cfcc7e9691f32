"""Model entries by name, the memory they share, and the decisions which of them are loaded."""
