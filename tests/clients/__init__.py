"""What the clients of all languages have in common."""
