"""Whose a request is: a user, or a person in whose name a delegate's process sends it."""

from msgspec import Struct

# Of the hash of a key: enough that none has the same.
_KEY_DIGITS = 16


class Identity(Struct, frozen=True, gc=False):
    """A user by its uid, or a person behind the delegate of this uid; `allotted` is a person's number.

    `key` is the hash of a person's key, which another person of the same name does not have.
    """

    uid: int
    person: str | None = None
    allotted: int | None = None
    key: str = ""

    @property
    def number(self) -> int:
        """The number that stands for it in accounts, weights and engines: a user's uid."""
        return self.uid if self.allotted is None else self.allotted

    @property
    def namespace(self) -> str:
        """The name under which its cells are cached; a person's has a character that no uid has."""
        return str(self.uid) if self.person is None else f"{self.uid}@{self.person}/{self.key[:_KEY_DIGITS]}"

    @property
    def name(self) -> str:
        """The name under which its usage is kept: a person's is the same behind every delegate."""
        return str(self.uid) if self.person is None else name_of(self.person)


def name_of(person: str) -> str:
    """Return the name under which a person's usage is kept, which no user has."""
    return f"@{person}"
