"""The dialects without I/O: bodies into params of the daemon, chunks and answers into bytes."""
