"""The wire contract: frames, envelope, params, errors, socket path."""
