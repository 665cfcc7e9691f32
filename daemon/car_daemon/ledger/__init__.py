"""The ledger: sums by day, identity, app and model, and their file."""
