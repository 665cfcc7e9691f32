"""The tables of docs/reference, made from the definitions that decode requests, configurations and command lines."""
