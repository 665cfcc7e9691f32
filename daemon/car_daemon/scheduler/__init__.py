"""Who runs: request states, waiting, gate. Decides only: no I/O, clock, thread, asyncio or llama_cpp."""
