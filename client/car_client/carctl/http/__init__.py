"""`carctl http`: the HTTP door of this user, its keys and its service."""
