"""The load generator: `carctl bench` and the project's own benchmarks ask with it, daemons and HTTP servers alike."""
