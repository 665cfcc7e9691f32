"""Images of requests: files bounded, decoded by Pillow and encoded into rows in a thread beside the loop."""
