"""Texts for llguidance's errors, whose own would quote the grammar."""

import re

_UNKNOWN = "it cannot be compiled"
_SCHEMA = re.compile(r"failed to compile JSON schema: (.*)")
# Start of the library's error, and its meaning for the author of the schema.
_MEANINGS = {
    "Unsatisfiable schema": "no value is valid under it",
    "oneOf constraints": "oneOf is supported only where at most one of its schemas can match: use anyOf",
    "min/maxProperties": "minProperties and maxProperties are supported only where all properties are required",
    "Pointer": "a $ref names a schema that does not exist",
    "Resource": "a $ref points outside the schema",
    "regex parse error": "a pattern is not a regular expression, or has look-around or backreferences",
    "Invalid type": "a type is not one of JSON's",
    "Unknown format": "a format is not supported",
}
_KEYS = "Unimplemented keys"
# Keywords of JSON schemas that the library lacks; other entries of its list are names chosen by the author.
_KEYWORDS = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    *("contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef"),
)


def explain(error: str) -> str:
    """Return the text for an error of the library."""
    found = _SCHEMA.search(error)
    if found is None:
        return _UNKNOWN
    message = found[1]
    if message.startswith(_KEYS):
        named = [keyword for keyword in _KEYWORDS if f'"{keyword}"' in message]
        return f"not supported: {', '.join(named)}" if named else _UNKNOWN
    return next((meaning for begin, meaning in _MEANINGS.items() if message.startswith(begin)), _UNKNOWN)
