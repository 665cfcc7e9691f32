"""`carctl doctor`: checks of this machine and of the daemon."""
