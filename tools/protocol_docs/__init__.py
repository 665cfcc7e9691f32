"""The tables of docs/protocol.md, made from the definitions that decode the requests."""
