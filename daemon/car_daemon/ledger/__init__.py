"""The ledger of usage: sums by day, identity, app and model, and the file that keeps them."""
