"""Files of cells: prefixes that survive their engine."""
