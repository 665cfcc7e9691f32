"""Grammars that clients bring, in the language of the library that constrains an answer."""
