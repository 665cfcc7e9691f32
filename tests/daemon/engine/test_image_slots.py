"""Images keep their places through a chat template, and no client can put one in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_daemon.engine.image_slots import Slot, Text, carry, cut, marker, new_secret
from car_daemon.engine.llama.sandbox import chat_environment
from car_daemon.engine.llama.template import ChatTemplate
from car_daemon.engine.refusal import Refusal
from car_protocol.conversation import Message
from tests.daemon.engine.llama.chats import FAMILIES, Family, chat, family
from tests.daemon.engine.llama.fakes import FakeVocabulary

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
    return chat_environment().from_string(source).render(messages=[{"content": content} for content in contents])


def refused(text: str, images: int) -> dict[str, object]:
    """Return the data of the error that a rendered text brings."""
    with pytest.raises(Refusal) as refusal:
        cut([(text, True)], images, SECRET)
    assert refusal.value.reason == "invalid_params"
    return refusal.value.data


def test_images_stand_where_their_parts_stood() -> None:
    texts, images = carry([["see ", b"one", " and ", b"two"], [b"three"]], SECRET)
    assert images == [b"one", b"two", b"three"]
    assert cut([(rendered(PLAIN, texts), True)], 3, SECRET) == [
        Text("[see ", True),
        Slot(0),
        Text(" and ", True),
        Slot(1),
        Text("][", True),
        Slot(2),
        Text("]", True),
    ]


def test_pieces_keep_whether_control_tokens_count_in_them() -> None:
    pieces = [("<s>", True), (f"a{marker(0, SECRET)}b", False), (marker(1, SECRET), True)]
    assert cut(pieces, 2, SECRET) == [Text("<s>", True), Text("a", False), Slot(0), Text("b", False), Slot(1)]


def test_a_chat_without_images_stays_as_it_is() -> None:
    texts, images = carry([["a", "b"], [], ["c"]], SECRET)
    assert (texts, images) == (["ab", "", "c"], [])
    assert cut([("ab", True), ("c", False)], 0, SECRET) == [Text("ab", True), Text("c", False)]


def test_equal_images_have_places_of_their_own() -> None:
    texts, images = carry([[b"one", b"one"]], SECRET)
    assert images == [b"one", b"one"]
    assert cut([(texts[0], True)], 2, SECRET) == [Slot(0), Slot(1)]


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
    texts, images = carry([["a", b"one"], [b"two", "b"]], SECRET)
    assert refused(rendered(source, texts), len(images)) == {"param": "messages"}


@pytest.mark.parametrize("filter", ["upper", "lower", "trim", "tojson", "title", "e"])
def test_a_marker_outlives_what_templates_do_to_text(filter: str) -> None:
    texts, _ = carry([[b"one"]], SECRET)
    assert Slot(0) in cut([(rendered("{{ messages[0].content | " + filter + " }}", texts), True)], 1, SECRET)


def test_templates_that_look_for_parts_take_the_text_as_one_part() -> None:
    texts, _ = carry([["a", b"one"]], SECRET)
    assert refused(rendered(TYPED, texts), 1) == {"param": "messages"}
    parts = [[{"type": "text", "text": text}] for text in texts]
    assert cut([(rendered(TYPED, parts), True)], 1, SECRET) == [Text("a", True), Slot(0)]


def test_a_secret_is_never_the_same() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


@given(words=st.lists(st.sampled_from(["\U0001fffe", "1", "0", "123456789", marker(0, "1"), "x"])).map("".join))
def test_a_client_without_the_secret_puts_no_image_in(words: str) -> None:
    secret = "987654321"
    texts, _ = carry([[words, b"one", words]], secret)
    found = cut([(texts[0], True)], 1, secret)
    assert found == [Text(words, True), Slot(0), Text(words, True)] if words else found == [Slot(0)]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_templates_of_all_families_keep_images(name: Family) -> None:
    template, vocabulary = family(name)
    secret = new_secret()
    begin = vocabulary.specials[0]
    texts, images = carry([["see <b> ", b"one", f" {begin}"], [b"two", " then ", b"three"]], secret)
    asked = chat(Message("user", texts[0]), Message("assistant", "yes"), Message("user", texts[1]))
    found = cut([(written(template, vocabulary, asked), True)], len(images), secret)
    assert [segment for segment in found if isinstance(segment, Slot)] == [Slot(0), Slot(1), Slot(2)]
    assert secret not in "".join(segment.text for segment in found if isinstance(segment, Text))


def written(template: ChatTemplate, vocabulary: FakeVocabulary, asked: Any) -> str:
    """Return the text of a rendered chat."""
    return vocabulary.written(template.render(asked).tokens)
