"""The wire contract that daemon and clients share: frames, envelope, methods, errors, socket path. No I/O."""

PROTOCOL = "1"
