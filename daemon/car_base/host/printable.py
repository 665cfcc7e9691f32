"""Text of another process on its way to a terminal."""


def printable(text: str) -> str:
    """Return a text without control characters: each becomes its escape, so that no line is forged."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
