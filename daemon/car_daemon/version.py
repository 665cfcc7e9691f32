"""The daemon's own version, from the installed distribution."""

from importlib.metadata import version

VERSION = version("card-daemon")
