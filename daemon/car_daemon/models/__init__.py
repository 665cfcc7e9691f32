"""The models: their entries, and the engine processes that serve them."""
