"""One client's bytes: frames in, calls in flight, frames out."""
