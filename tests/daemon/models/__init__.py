"""Tests of the models: their files, and what is known of them."""
