"""The tables of the pages, made from the code: what decodes requests, configurations and command lines, and more."""
