"""People behind delegates: whose a request is, by the configuration."""
