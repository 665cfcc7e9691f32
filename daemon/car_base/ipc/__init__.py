"""The link between daemon and engine: frames, their encoding, and the types on both sides."""
