"""The settings of the HTTP door and its keys, for the door and for `carctl`."""
