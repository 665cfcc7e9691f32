"""What a member means, said where it is defined: rpc.discover shows it, and docs/protocol.md is made from it."""

from msgspec import Meta


def note(text: str) -> Meta:
    """Return the note of a member, for its annotation."""
    return Meta(description=text)
