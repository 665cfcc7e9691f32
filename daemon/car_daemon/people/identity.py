"""Whose a request is: a user, or a person in whose name a delegate's process sends it."""

from msgspec import Struct


class Identity(Struct, frozen=True):
    """A user by its uid, or a person behind the delegate of this uid; `allotted` is a person's number."""

    uid: int
    person: str | None = None
    allotted: int | None = None

    @property
    def number(self) -> int:
        """The number that stands for it in accounts, weights and engines: a user's uid."""
        return self.uid if self.allotted is None else self.allotted

    @property
    def namespace(self) -> str:
        """The name under which its cells are cached; a person's has a character that no uid has."""
        return str(self.uid) if self.person is None else f"{self.uid}@{self.person}"
