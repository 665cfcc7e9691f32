"""The costs of moving cells, the worth of cells, and the prefixes that are kept."""
