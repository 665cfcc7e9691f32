"""Getting and guarding a listening socket, and identifying the processes that connect to it."""
