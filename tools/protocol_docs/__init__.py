"""The tables of docs/reference/protocol.md, made from the definitions that decode the requests."""
