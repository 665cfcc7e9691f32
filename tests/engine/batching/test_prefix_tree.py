"""The radix tree of prefixes finds what a scan of all would."""

from hypothesis import given
from hypothesis import strategies as st

from car_engine.batching.prefix import Prefix, prefix_of
from car_engine.batching.reuse.prefix_tree import PrefixTree

# Prefixes that share much: a few blocks of tokens, and an end within one.
BLOCK = 18


def prefix_in(letters: list[int], cut: int, namespace: str, step: int) -> Prefix:
    tokens = [letter for letter in letters for _ in range(BLOCK)]
    return prefix_of(tokens[: len(tokens) - cut], namespace, step)


prefixes = st.builds(
    prefix_in,
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.integers(0, BLOCK - 1),
    st.sampled_from(["me", "you"]),
    st.sampled_from([1, 8]),
)


def filled(kept: list[Prefix], removed: set[int]) -> PrefixTree[int]:
    tree: PrefixTree[int] = PrefixTree()
    for number, prefix in enumerate(kept):
        tree.add(prefix, number)
    for number in removed:
        tree.remove(number)
    return tree


@given(st.lists(prefixes, max_size=12), st.sets(st.integers(0, 11)), prefixes)
def test_matches_are_those_of_a_scan_the_longest_first(kept: list[Prefix], removed: set[int], asked: Prefix) -> None:
    removed = {number for number in removed if number < len(kept)}
    found = list(filled(kept, removed).matches(asked))
    scanned = {
        (common, number)
        for number, prefix in enumerate(kept)
        if number not in removed and (common := prefix.common(asked))
    }
    assert set(found) == scanned
    assert len(found) == len(scanned)
    assert [common for common, _ in found] == sorted((common for common, _ in found), reverse=True)


@given(st.lists(prefixes, max_size=12), st.sets(st.integers(0, 11)), prefixes)
def test_contained_are_the_prefixes_that_another_begins_with(
    kept: list[Prefix], removed: set[int], whole: Prefix
) -> None:
    removed = {number for number in removed if number < len(kept)}
    begins = {
        number
        for number, prefix in enumerate(kept)
        if number not in removed
        and (prefix.namespace, prefix.step) == (whole.namespace, whole.step)
        and prefix.tokens.tolist() == whole.tokens.tolist()[: len(prefix)]
    }
    assert set(filled(kept, removed).contained(whole)) == begins


@given(st.lists(prefixes, max_size=12))
def test_an_emptied_tree_keeps_no_branch(kept: list[Prefix]) -> None:
    assert repr(filled(kept, set(range(len(kept))))) == "<PrefixTree 0 items in 0 namespaces>"
