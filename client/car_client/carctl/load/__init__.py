"""The load generator of `carctl bench` and of the project's benchmarks, for daemons and HTTP servers."""
