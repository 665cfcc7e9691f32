"""The images in the prompt of one sequence."""

from typing import Any, NamedTuple


class ImageRows(NamedTuple):
    """An image in a prompt: rows of shape (positions, width) in place of tokens from `start` on."""

    start: int
    rows: Any

    @property
    def end(self) -> int:
        """The first position after it."""
        return self.start + len(self.rows)


class PromptImages:
    """Encoded images in order of position; `awaited` while they are being encoded."""

    def __init__(self) -> None:
        self._images: list[ImageRows] = []
        self.awaited = False

    def __repr__(self) -> str:
        return f"<PromptImages {len(self._images)}{' awaited' if self.awaited else ''}>"

    def set(self, images: list[ImageRows]) -> None:
        """Set the rows of the prompt's images, in order of position."""
        self._images = images
        self.awaited = False

    def clear(self) -> None:
        """Forget the images."""
        self._images = []
        self.awaited = False

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self._images)

    def at(self, cell: int) -> ImageRows | None:
        """Return the image that has a row at this cell."""
        return next((image for image in self._images if image.start <= cell < image.end), None)

    def stretch(self, cell: int, end: int) -> int:
        """Return how many positions from this cell fit one decode: up to an image's end or start, at most to `end`."""
        if not self._images:
            return end - cell
        if (image := self.at(cell)) is not None:
            return image.end - cell
        return min((image.start for image in self._images if image.start > cell), default=end) - cell
