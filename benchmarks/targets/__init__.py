"""The compared targets: each runs one case and reports its figures."""
