"""The radix tree of prefixes finds what a scan of all would."""

from hypothesis import given
from hypothesis import strategies as st

from car_engine.batching.prefix import Prefix, common_of, prefix_of
from car_engine.batching.reuse.prefix_tree import PrefixTree
from tests.pace import calls

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
        tree.discard(number)
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


@given(st.lists(prefixes, max_size=12), st.sets(st.integers(0, 10)), prefixes)
def test_branches_are_where_others_begin_to_differ(kept: list[Prefix], removed: set[int], own: Prefix) -> None:
    removed = {number for number in removed if number < len(kept)}
    others = [each for number, each in enumerate(kept) if number not in removed]
    alike = [each for each in others if (each.namespace, each.step) == (own.namespace, own.step)]
    common = {(common_of(each.tokens, own.tokens), min(len(each), len(own))) for each in alike}
    parts = {length for length, shorter in common if 0 < length < shorter}
    assert set(filled([*kept, own], removed).branches(own)) == parts


def test_what_a_prefix_contains_costs_no_square_of_its_number() -> None:
    def cost(items: int) -> int:
        whole, tree = prefix_of(range(20 * items), "me"), PrefixTree[int]()
        for number in range(items):
            tree.add(whole.cut(20 * (number + 1)), number)
        return calls(lambda: tree.contained(whole) and tree.branches(whole))

    few, many = cost(100), cost(400)
    assert many <= 5 * few


@given(st.lists(prefixes, max_size=12))
def test_an_emptied_tree_keeps_no_branch(kept: list[Prefix]) -> None:
    assert repr(filled(kept, set(range(len(kept))))) == "<PrefixTree 0 items in 0 namespaces>"
