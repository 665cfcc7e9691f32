"""Grammars of answers: GBNF and JSON schemas as llguidance's Lark, compiled and applied token by token."""
