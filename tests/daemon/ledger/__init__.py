"""Tests of the ledger of usage."""
