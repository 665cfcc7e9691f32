"""Requests from accepted to answered: frames to engines, answers to clients."""
