"""The book's promise to its readers: short sentences, and nouns in place of words that stand for nouns."""

from statistics import mean

from tools.site.sentences import LONGEST, ROOT, pages, riddles, sentences

# Promises: the mean length of a sentence in words, and the riddles of all pages together.
_MEAN, _RIDDLES = 16, 20
# A heading or a cell of a word or two would hide long sentences.
_SHORTEST = 4


def test_no_sentence_of_the_book_has_to_be_read_twice_for_its_length() -> None:
    everything = [each for page in pages() for each in sentences(page) if each.words >= _SHORTEST]
    long = [f"{each.page.relative_to(ROOT)}: {each.text}" for each in everything if each.words > LONGEST]
    assert not long, "\n".join(long)
    assert mean(each.words for each in everything) <= _MEAN


def test_the_book_has_nouns_in_place_of_riddles() -> None:
    found = [each for page in pages() for each in sentences(page) if riddles(each.text)]
    assert len(found) <= _RIDDLES, "\n".join(f"{each.page.relative_to(ROOT)}: {each.text}" for each in found)
