"""The figures of a benchmark for people."""

import pytest

from benchmarks.report import figure, markdown


def test_a_table_is_markdown() -> None:
    shown = markdown(("case", "tokens/s"), [["one", "1"], ["two", "2"]])
    assert shown == "| case | tokens/s |\n| --- | ---: |\n| one | 1 |\n| two | 2 |"


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (99.96, "100.0"), (12.34, "12.3"), (0.876, "0.88")])
def test_figures_have_the_digits_that_count(value: float, text: str) -> None:
    assert figure(value) == text
