"""The part of the free memory of devices with which a model loads: less after a load that failed, then more again."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

# The second try of a load plans with this part of what the first one planned with.
SECOND_TRY = 0.8
# Closer to a part that failed than this, no load tries more.
_NEAR = 0.06
# An outcome holds for free memory that differs by at most this part of it.
_LIKE = 0.125
# Outcomes that are kept, such as beside another model and alone.
_MOST = 4

Part = Annotated[float, Meta(gt=0, le=1)]


class LoadOutcome(Struct, frozen=True):
    """The free bytes of devices before a load, the part of them with which it succeeded, and the least that failed."""

    free: Annotated[int, Meta(ge=0)]
    part: Part
    failed: Part

    def is_like(self, free: int) -> bool:
        """Return whether about as much was free."""
        return abs(self.free - free) <= _LIKE * self.free


class DeviceParts(Struct, frozen=True):
    """The outcomes of loads of one model whose first try failed, the last one first."""

    # The name is that in the files of earlier versions.
    outcomes: Annotated[list[LoadOutcome], Meta(max_length=_MOST)] = field(name="situations", default_factory=list)

    def first(self, free: int) -> float:
        """Return the part for the first try: all; after a failure half way to the one that failed, until it is near."""
        if (known := self._like(free)) is None:
            return 1.0
        middle = (known.part + known.failed) / 2
        return middle if known.failed - known.part > _NEAR else known.part

    def second(self, free: int, failed: float) -> float:
        """Return the part for the try after one that failed: that of an earlier success, or four fifths."""
        known = self._like(free)
        return known.part if known is not None and known.part < failed else failed * SECOND_TRY

    def after(self, free: int, tried: Sequence[float]) -> "DeviceParts":
        """Return the outcomes with that of a load that tried these parts, whose last part succeeded."""
        known = self._like(free)
        if known is None and len(tried) == 1:
            return self
        failed = tried[-2] if len(tried) > 1 else 1.0 if known is None else known.failed
        others = [each for each in self.outcomes if each is not known]
        return DeviceParts([LoadOutcome(free, tried[-1], failed), *others][:_MOST])

    def _like(self, free: int) -> LoadOutcome | None:
        return next((each for each in self.outcomes if each.is_like(free)), None)
