"""`carctl bench`: rounds, their table and their chart."""
