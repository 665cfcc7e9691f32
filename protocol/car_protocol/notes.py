"""Notes on members at their definitions: rpc.discover shows them, and docs/protocol.md is generated from them."""

from msgspec import Meta


def note(text: str) -> Meta:
    """Return the note of a member, for its annotation."""
    return Meta(description=text)
