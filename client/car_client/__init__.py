"""The thin client of the daemon, asyncio and blocking, on one sans-I/O core; and `carctl`."""
