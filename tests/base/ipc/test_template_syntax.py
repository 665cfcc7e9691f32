"""The syntax of a model by its chat template, which the daemon reads for every file that is not loaded."""

# DeepSeek writes its control tokens with a wide bar.
# ruff: noqa: RUF001

import pytest

from car_base.ipc.template_syntax import abilities_of, style_of
from car_daemon.models.inspection import TEMPLATE_BYTES
from tests.pace import cpu_time

_MARKS = ["<|channel|>", "<answer>", "<tool_calls>", "DSML", "Action:", "<tool_call>", "<response>", "{{", "{%", "{{%}"]


@pytest.mark.parametrize("mark", _MARKS)
def test_a_template_of_one_mark_a_thousand_times_takes_no_seconds(mark: str) -> None:
    template = mark * (TEMPLATE_BYTES // len(mark))
    with cpu_time() as spent:
        abilities_of(template)
    assert spent.seconds < 1


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("<|channel|> and <|message|>", "gpt_oss"),
        ("<|message|> and <|channel|>", None),
        ("<tool_calls>\n<answer>", "hunyuan_a13b"),
        ("<answer>\n<tool_calls>", "hunyuan_a13b"),
        ("<tool_call>", "hermes"),
        ("{% set d = '｜DSML｜' %}<{{ d }}tool_calls>", "deepseek_v4"),
        ("{% set d = '｜DSML｜' %}<{{ d }} calls>", "deepseek_v4_1"),
        ("{% set d = '｜DSML｜' %}<{{ d }}function_calls>", "deepseek_v3_2"),
    ],
)
def test_the_marks_of_a_family_count_in_their_order(template: str, style: str | None) -> None:
    assert style_of(template) == style


def test_tools_are_read_in_code_alone() -> None:
    assert abilities_of("tools <tool_call>{{ messages }} {{ tools") == []
    assert abilities_of("<tool_call>{{ messages }}{% if tools %}") == ["tools"]
