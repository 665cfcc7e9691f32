"""`carctl adopt`: takes over the port, the names and the files of another server, and gives them back."""
