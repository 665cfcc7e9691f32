"""Texts as elements of a grammar (llguidance's Lark): control tokens as tokens, and any text up to an end."""

import json
import re
from collections.abc import Callable, Sequence

TokenOf = Callable[[str], int | None]


class GrammarTexts:
    """Writes texts of one family for one vocabulary; adds the rules that they need to those of a grammar."""

    def __init__(self, markers: Sequence[str], token_of: TokenOf, rules: dict[str, str]) -> None:
        self._token_of = token_of
        self._rules = rules
        self._ends: dict[tuple[str, str], str] = {}  # names of the rules of any text, by its end and the refused start
        longest_first = sorted(markers, key=len, reverse=True)
        tokens = [marker for marker in longest_first if token_of(marker) is not None]
        self._tokens = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else None

    def text(self, text: str) -> str:
        """Return the element of a text, empty for none."""
        before, *rest = self._split(text)
        return " ".join([literal(before), *rest] if before else rest)

    def until(self, end: str, refused: str = "") -> str:
        """Return the element of any text up to the first of its ends, with it; it may not begin as `refused`."""
        before, *rest = self._split(end)
        name = self._ends.setdefault((end, refused), f"text_{len(self._ends)}")
        without = [rf"/{_escaped(refused)}(?s:.*)/"] if refused else []
        if rest:
            # A control token ends the text, in which its end may not be spelled out.
            without.append(f"/(?s:.*){_escaped(end)}(?s:.*)/")
        terminal = name.upper()
        self._rules[terminal] = " & ~".join((f"/(?s:.*){_escaped(before)}/", *without))
        if rest:
            return " ".join((terminal, *rest))
        # Lazy, because it ends with the first of its ends.
        self._rules[f"{name}[lazy]"] = terminal
        return name

    def _split(self, text: str) -> list[str]:
        """Return the text before the first control token, then the elements of that token and of all that follows."""
        before, *rest = self._tokens.split(text) if self._tokens is not None else [text]
        tokens = zip(rest[::2], rest[1::2], strict=True)
        written = ((f"<[{self._token_of(token)}]>", literal(between)) for token, between in tokens)
        return [before, *(element for pair in written for element in pair if element != '""')]


def literal(text: str) -> str:
    """Return the element of a text without control tokens."""
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
