"""The connections under the clients."""
