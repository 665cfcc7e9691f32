"""`carctl service`: card as a service under systemd or launchd."""
