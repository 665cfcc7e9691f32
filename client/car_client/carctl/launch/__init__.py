"""`carctl launch`: the configuration with which an application uses the HTTP door."""
