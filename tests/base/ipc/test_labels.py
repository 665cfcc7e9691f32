"""Ray's expressions of a label's value."""

import pytest

from car_base.ipc.labels import LabelExpression


@pytest.mark.parametrize(
    ("text", "sent", "taken", "refused"),
    [
        ("a", "a", ["a"], ["b", "A", None]),
        ("!a", "!a", ["b", None], ["a"]),
        ("in(a, b)", "in(a,b)", ["a", "b"], ["c", "a,b", None]),
        ("!in( a ,b )", "!in(a,b)", ["c", None], ["a", "b"]),
        ("in(a)", "in(a)", ["a"], ["in(a)"]),
        ("in", "in", ["in"], ["a"]),
        ("A100-80.x_1", "A100-80.x_1", ["A100-80.x_1"], ["A100"]),
    ],
)
def test_an_expression_takes_its_labels_and_is_sent_without_blanks(
    text: str, sent: str, taken: list[str | None], refused: list[str | None]
) -> None:
    expression = LabelExpression.parse(text)
    assert str(expression) == sent
    assert [label for label in [*taken, *refused] if expression.takes(label)] == taken
    assert LabelExpression.parse(sent) == expression


@pytest.mark.parametrize("text", ["", "!", "!!a", "in()", "in(a,)", "in(a b)", "a b", "a\n", "-a", "not(a)", "a" * 64])
def test_other_texts_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a value of a label: write a word, in\(a, b\), or either after a !"):
        LabelExpression.parse(text)
