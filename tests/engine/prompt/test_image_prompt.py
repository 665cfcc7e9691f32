"""Images keep their places through a chat template, no client can put one in, and no more is counted than fits."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.frames import Chat
from car_base.ipc.refusal import Refusal
from car_engine.images.image_file import Size
from car_engine.prompt.image_prompt import (
    Counts,
    PromptText,
    Slot,
    marker,
    split_at_markers,
    take_images,
    with_markers,
)
from car_engine.prompt.rendering.environment import chat_environment, local_now
from car_engine.prompt.special_token_escaper import new_secret
from car_engine.prompt.template import ChatTemplate
from car_protocol.conversation import AudioPart, ImagePart, Message, TextPart
from tests.engine.images.pictures import png
from tests.engine.prompt.chats import FAMILIES, Family, chat, family
from tests.engine.prompt.fakes import FakeVocabulary

UNSHOWN = {"param": "messages", "why": "the chat template does not show each image once"}
SECRET = "123456789"
PLAIN = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
# Templates of this kind look for parts in the content and see none in a text.
TYPED = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<image>{% endif %}"
    "{% endfor %}{% endfor %}"
)


def rendered(source: str, contents: list[Any]) -> str:
    """Return what a template makes of contents."""
    return (
        chat_environment(local_now).from_string(source).render(messages=[{"content": content} for content in contents])
    )


def refused(text: str, images: int) -> dict[str, object]:
    """Return the data of the error that a rendered text brings."""
    with pytest.raises(Refusal) as refusal:
        split_at_markers([(text, True)], images, SECRET)
    assert refusal.value.reason == "invalid_params"
    return refusal.value.data


def test_images_stand_where_their_parts_stood() -> None:
    texts, images = with_markers([["see ", b"one", " and ", b"two"], [b"three"]], SECRET)
    assert images == [b"one", b"two", b"three"]
    assert split_at_markers([(rendered(PLAIN, texts), True)], 3, SECRET) == [
        PromptText("[see ", True),
        Slot(0),
        PromptText(" and ", True),
        Slot(1),
        PromptText("][", True),
        Slot(2),
        PromptText("]", True),
    ]


def test_pieces_keep_whether_control_tokens_count_in_them() -> None:
    pieces = [("<s>", True), (f"a{marker(0, SECRET)}b", False), (marker(1, SECRET), True)]
    assert split_at_markers(pieces, 2, SECRET) == [
        PromptText("<s>", True),
        PromptText("a", False),
        Slot(0),
        PromptText("b", False),
        Slot(1),
    ]


def test_a_chat_without_images_stays_as_it_is() -> None:
    texts, images = with_markers([["a", "b"], [], ["c"]], SECRET)
    assert (texts, images) == (["ab", "", "c"], [])
    assert split_at_markers([("ab", True), ("c", False)], 0, SECRET) == [PromptText("ab", True), PromptText("c", False)]


def test_equal_images_have_places_of_their_own() -> None:
    texts, images = with_markers([[b"one", b"one"]], SECRET)
    assert images == [b"one", b"one"]
    assert split_at_markers([(texts[0], True)], 2, SECRET) == [Slot(0), Slot(1)]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ messages[0].content }}",
        PLAIN + "{{ messages[1].content }}",
        PLAIN + PLAIN,
        "{% for message in messages %}{{ message.content[:-1] }}{% endfor %}",
        "{% for message in messages %}{{ message.content | reverse }}{% endfor %}",
        "{% for message in messages %}{{ message.content | tojson(ensure_ascii=true) }}{% endfor %}",
    ],
)
def test_a_template_that_drops_or_repeats_an_image_is_an_error(source: str) -> None:
    texts, images = with_markers([["a", b"one"], [b"two", "b"]], SECRET)
    assert refused(rendered(source, texts), len(images)) == UNSHOWN


@pytest.mark.parametrize("filter", ["upper", "lower", "trim", "tojson", "title", "e"])
def test_a_marker_outlives_what_templates_do_to_text(filter: str) -> None:
    texts, _ = with_markers([[b"one"]], SECRET)
    assert Slot(0) in split_at_markers(
        [(rendered("{{ messages[0].content | " + filter + " }}", texts), True)], 1, SECRET
    )


def test_templates_that_look_for_parts_take_the_text_as_one_part() -> None:
    texts, _ = with_markers([["a", b"one"]], SECRET)
    assert refused(rendered(TYPED, texts), 1) == UNSHOWN
    parts = [[{"type": "text", "text": text}] for text in texts]
    assert split_at_markers([(rendered(TYPED, parts), True)], 1, SECRET) == [PromptText("a", True), Slot(0)]


def test_a_secret_is_never_the_same() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


@given(words=st.lists(st.sampled_from(["\U0001fffe", "1", "0", "123456789", marker(0, "1"), "x"])).map("".join))
def test_a_client_without_the_secret_puts_no_image_in(words: str) -> None:
    secret = "987654321"
    texts, _ = with_markers([[words, b"one", words]], secret)
    found = split_at_markers([(texts[0], True)], 1, secret)
    assert found == [PromptText(words, True), Slot(0), PromptText(words, True)] if words else found == [Slot(0)]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_templates_of_all_families_keep_images(name: Family) -> None:
    template, vocabulary = family(name)
    secret = new_secret()
    begin = vocabulary.specials[0]
    texts, images = with_markers([["see <b> ", b"one", f" {begin}"], [b"two", " then ", b"three"]], secret)
    asked = chat(Message("user", texts[0]), Message("assistant", "yes"), Message("user", texts[1]))
    found = split_at_markers([(written(template, vocabulary, asked), True)], len(images), secret)
    assert [segment for segment in found if isinstance(segment, Slot)] == [Slot(0), Slot(1), Slot(2)]
    assert secret not in "".join(segment.text for segment in found if isinstance(segment, PromptText))


def written(template: ChatTemplate, vocabulary: FakeVocabulary, asked: Any) -> str:
    """Return the text of a rendered chat."""
    return vocabulary.written(template.render(asked).tokens)


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
    taken = take_images(conversation(1, 2, 1), Counts(Count()), 30)
    assert taken is not None
    first, second, third = taken.placeholders
    assert first == third
    assert not set(first) & set(second)
    assert all(number < 0 for number in first + second)


def test_images_that_cannot_fit_are_not_even_counted() -> None:
    count = Count()
    assert take_images(conversation(*range(30)), Counts(count), 29) is None
    assert count.asked == 3


def refusal_of(chat: Chat) -> object:
    with pytest.raises(Refusal) as refused:
        take_images(chat, Counts(Count()), 10_000)
    assert refused.value.reason == "invalid_params"
    return refused.value.data["why"]


def test_a_request_with_too_many_images_is_refused_before_any_is_read() -> None:
    unread = Chat(messages=[Message("user", [ImagePart("?")] * 64), Message("user", [ImagePart("?")])])
    assert refusal_of(unread) == "the request has 65 images and sounds, max_images is 64: send fewer"
    assert take_images(conversation(*range(64)), Counts(Count()), 10_000) is not None


def test_the_images_of_a_request_have_a_bound_of_pixels_together() -> None:
    header = png(1, 1, (0, 0, 0))
    large = header[:16] + (4000).to_bytes(4, "big") * 2 + header[24:]
    parts: list[TextPart | ImagePart | AudioPart] = [ImagePart(base64.b64encode(large).decode())]
    why = "the images of the request have 80,000,000 pixels, max_image_pixels is 64,000,000: send fewer or smaller ones"
    assert refusal_of(Chat(messages=[Message("user", parts * 5)])) == why
    assert take_images(Chat(messages=[Message("user", parts * 4)]), Counts(Count()), 10_000) is not None


def test_a_bad_image_is_refused() -> None:
    bad = Chat(messages=[Message("user", [ImagePart(base64.b64encode(b"no image").decode())])])
    with pytest.raises(Refusal):
        take_images(bad, Counts(Count()), 30)
