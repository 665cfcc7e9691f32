"""The terminal pictures in docs/pictures, made from a daemon that works."""
