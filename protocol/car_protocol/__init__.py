"""The wire contract that daemon and clients share: frames, envelope, methods, errors, socket path. No I/O."""

PROTOCOL = "1"
# The distribution's version, which pyproject.toml reads here, because importlib.metadata costs 12 ms at every start.
__version__ = "0.3.0"
