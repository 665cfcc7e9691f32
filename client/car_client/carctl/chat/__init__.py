"""`carctl chat`: its lines, its commands and the conversation that they keep."""
