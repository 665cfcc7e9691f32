"""The cost of reading an answer: microseconds of CPU a token for text, thoughts and tool calls, without a model.

`python -m benchmarks.reading` prints them; to compare two trees, run it in turn with each in PYTHONPATH.
"""

import time
from collections.abc import Callable
from itertools import cycle, islice

from benchmarks.report import Report
from car_daemon.engine.output.reader import OutputReader
from car_daemon.engine.output.reasoning import ReasoningSplit
from car_daemon.engine.output.tool_calls import ToolCallReader
from car_daemon.ipc.types import Tags, ToolStyle

ROUNDS = 15
_WORDS = "The| quick| brown| fox| jumps| over| the| lazy| dog|.|\n| It| is| a| (|very|)| fine| day|,"
TEXT = [word.encode() for word in islice(cycle(_WORDS.split("|")), 2000)]
THOUGHT = [b"<think>", *TEXT[:1000], b"</think>", *TEXT[:1000]]
CALL = [b"<tool_call>", b'{"name": "f", ', b'"arguments": {"a": "', *TEXT, b'"}}', b"</tool_call>"]
# Line breaks are escaped within JSON.
CALL = [token.replace(b"\n", b"\\n") for token in CALL]


def _plain() -> OutputReader:
    return OutputReader([], None, None)


def _thinking() -> OutputReader:
    return OutputReader([], ReasoningSplit(Tags("<think>", "</think>"), inside=False), None)


def _stopping() -> OutputReader:
    return OutputReader(["END", "STOP"], None, None)


def _calling(style: ToolStyle, *, tools: bool = True) -> Callable[[], OutputReader]:
    return lambda: OutputReader([], None, ToolCallReader(style, lambda: "id", calls=tools))


CASES: dict[str, tuple[Callable[[], OutputReader], list[bytes]]] = {
    "text": (_plain, TEXT),
    "text with stop strings": (_stopping, TEXT),
    "a thought and text": (_thinking, THOUGHT),
    "text of a model with channels, no tools": (_calling("gpt_oss", tools=False), TEXT),
    "text, tools of hermes": (_calling("hermes"), TEXT),
    "text, tools of qwen3_coder": (_calling("qwen3_coder"), TEXT),
    "a call of hermes": (_calling("hermes"), CALL),
}


def main() -> None:
    """Measure every case: the least of several rounds, because others share the cores."""
    report = Report("reading")
    for name, (make, tokens) in CASES.items():
        report.say(f"{name}: us a token", min(_cost(make(), tokens) for _ in range(ROUNDS)))
    report.close()


def _cost(reader: OutputReader, tokens: list[bytes]) -> float:
    started = time.thread_time()
    for token in tokens:
        reader.push(token)
    return (time.thread_time() - started) / len(tokens) * 1e6


if __name__ == "__main__":
    main()
