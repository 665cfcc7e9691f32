"""Why a grammar was refused, in words of our own: the library's quote it."""

import re

TOO_COMPLEX = "it became too complex"
_UNKNOWN = "it cannot be compiled"
_SCHEMA = re.compile(r"failed to compile JSON schema: (.*)")
# How the library begins, and what that means to who wrote the schema.
_MEANINGS = {
    "Unsatisfiable schema": "no value is valid under it",
    "oneOf constraints": "oneOf is taken only where one of its schemas at most can hold: use anyOf",
    "min/maxProperties": "minProperties and maxProperties are taken only where all properties are required",
    "Pointer": "a $ref leads nowhere",
    "Resource": "a $ref leads out of the schema",
    "regex parse error": "a pattern is no regular expression, or has look-around or backreferences",
    "Invalid type": "a type is none of JSON's",
    "Unknown format": "a format is unknown",
}
_KEYS = "Unimplemented keys"
# What JSON schemas have and the library has not; anything else in its list would be a name that somebody chose.
_KEYWORDS = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    *("contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef"),
)


def why_refused(error: str) -> str:
    """Return what the library's error means."""
    found = _SCHEMA.search(error)
    if found is None:
        return _UNKNOWN
    said = found[1]
    if said.startswith(_KEYS):
        named = [keyword for keyword in _KEYWORDS if f'"{keyword}"' in said]
        return f"not supported: {', '.join(named)}" if named else _UNKNOWN
    return next((meaning for begin, meaning in _MEANINGS.items() if said.startswith(begin)), _UNKNOWN)
