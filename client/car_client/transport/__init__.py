"""Connections to the daemon: the protocol without I/O, and the sockets under it, blocking and asyncio."""
