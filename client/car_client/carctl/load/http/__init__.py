"""HTTP servers as targets of a load: bodies, server-sent events and dialects."""
