"""card.toml, changed by commands."""
