"""The real daemon with its real engine on the built-in model, through the socket."""
