"""The client against a fake daemon on a real socket."""
