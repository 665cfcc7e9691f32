"""Images on their way into a prompt: the same numbers for the same image, and no more work than fits."""

import base64

import pytest

from car_daemon.engine.frames import Chat
from car_daemon.engine.images import Size
from car_daemon.engine.refusal import Refusal
from car_daemon.engine.sight import carried
from car_protocol.conversation import ImagePart, Message, TextPart
from tests.daemon.engine.pictures import png


def conversation(*shades: int) -> Chat:
    """Return a conversation with an image of each shade."""
    images = [base64.b64encode(png(4, 4, (shade, 0, 0))).decode() for shade in shades]
    return Chat(messages=[Message("user", [TextPart("see"), *map(ImagePart, images)])])


class Count:
    """Ten positions an image; keeps how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _: Size) -> int:
        self.asked += 1
        return 10


def test_the_same_image_is_the_same_numbers_and_another_is_not() -> None:
    taken = carried(conversation(1, 2, 1), Count(), 30)
    assert taken is not None
    first, second, third = taken.placeholders
    assert first == third
    assert not set(first) & set(second)
    assert all(number < 0 for number in first + second)


def test_images_that_cannot_fit_are_not_even_counted() -> None:
    count = Count()
    assert carried(conversation(*range(50)), count, 29) is None
    assert count.asked == 3


def test_a_bad_image_is_refused() -> None:
    chat = Chat(messages=[Message("user", [ImagePart(base64.b64encode(b"no image").decode())])])
    with pytest.raises(Refusal):
        carried(chat, Count(), 30)
