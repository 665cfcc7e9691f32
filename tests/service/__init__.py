"""The files that service managers read: systemd units and the LaunchAgent."""
