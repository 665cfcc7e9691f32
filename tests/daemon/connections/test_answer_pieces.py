"""Pieces of an answer are merged in their order, and nothing of them is lost."""

from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.frames import CallDelta, Extra
from car_daemon.connections.answer_pieces import AnswerPieces
from car_protocol.answer import Chunk, joined_calls
from car_protocol.conversation import FunctionCall, ToolCall

Added = tuple[str, Extra | None]
NAME, END = CallDelta(0, id="a", name="f"), CallDelta(0, ended=True)


def merged(*added: Added) -> list[Chunk]:
    """Return the chunks that pieces make."""
    pieces = AnswerPieces()
    for text, extra in added:
        pieces.add(text, extra)
    chunks = list(pieces.chunks("r", 5))
    assert [chunk.seq for chunk in chunks] == list(range(5, 5 + pieces.count))
    return chunks


def argument(text: str) -> Added:
    return "", Extra(calls=[CallDelta(0, arguments=text)])


def test_pieces_of_one_call_become_one() -> None:
    (chunk,) = merged(("So.", None), ("", Extra(calls=[NAME])), argument('{"a'), argument('": 1}'))
    assert chunk.text == "So."
    assert chunk.tool_calls
    (delta,) = chunk.tool_calls
    assert (delta.index, delta.id, delta.name, delta.arguments) == (0, "a", "f", '{"a": 1}')


def test_text_after_a_call_is_in_a_chunk_of_its_own() -> None:
    chunks = merged(("One", None), ("", Extra(calls=[NAME])), argument("{}"), ("", Extra(calls=[END, "Two"])))
    assert [(chunk.text, bool(chunk.tool_calls)) for chunk in chunks] == [("One", True), ("Two", False)]


def test_reasoning_after_a_call_is_in_a_chunk_of_its_own() -> None:
    chunks = merged(("", Extra(reasoning="hm")), ("So.", Extra(calls=[NAME])), ("", Extra(reasoning="so")))
    assert [(chunk.reasoning, chunk.text) for chunk in chunks] == [("hm", "So."), ("so", "")]


def test_the_end_of_a_call_alone_is_not_sent() -> None:
    assert merged(("", Extra(calls=[END]))) == []


def test_the_fault_of_a_call_comes_with_its_last_piece() -> None:
    (chunk,) = merged(("", Extra(calls=[CallDelta(0, invalid="arguments", ended=True)])))
    assert chunk.tool_calls
    assert (chunk.tool_calls[0].index, chunk.tool_calls[0].invalid) == (0, "arguments")


def test_tokens_without_text_are_a_chunk() -> None:
    (chunk,) = merged(("", Extra(tokens=[7])), ("a", Extra(tokens=[8])))
    assert (chunk.text, chunk.tokens) == ("a", [7, 8])


TEXTS = st.text("ab", max_size=2)


@st.composite
def answers(draw: st.DrawFn) -> list[Added]:
    """Steps of an answer, with whole calls and parts of them between text."""
    added: list[Added] = []
    index = -1
    for _ in range(draw(st.integers(0, 8))):
        calls: list[CallDelta | str] = []
        for _ in range(draw(st.integers(0, 3))):
            if draw(st.booleans()):
                index += 1
                calls.append(CallDelta(index, id=f"id{index}", name="f"))
            elif index >= 0 and draw(st.booleans()):
                calls.append(CallDelta(index, arguments=draw(TEXTS)))
            else:
                calls.append(draw(TEXTS))
        extra = Extra(draw(st.lists(st.integers(0, 9), max_size=1)), calls=calls)
        added.append((draw(TEXTS), extra if draw(st.booleans()) or calls else None))
    return added


def flat(chunks: list[Chunk]) -> list[tuple[str, object]]:
    """Return the content of chunks letter by letter, in order."""
    letters: list[tuple[str, object]] = []
    for chunk in chunks:
        letters += [("text", letter) for letter in chunk.text]
        for delta in chunk.tool_calls or ():
            letters += [("name", delta.id)] if delta.id else []
            letters += [(f"arguments of {delta.index}", letter) for letter in delta.arguments or ""]
    return letters


@given(answers(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_however_pieces_are_merged_their_order_stays(added: list[Added], breaks: list[bool]) -> None:
    alone = [chunk for each in added for chunk in merged(each)]
    groups: list[list[Added]] = [[]]
    for each, breaks_here in zip(added, breaks, strict=False):
        groups += [[]] if breaks_here else []
        groups[-1].append(each)
    together = [chunk for group in groups for chunk in merged(*group)]
    assert flat(together) == flat(alone)
    assert len(together) <= len(alone)
    tokens = [token for chunk in together for token in chunk.tokens or ()]
    assert tokens == [token for _, extra in added if extra for token in extra.tokens]


def test_a_whole_answer_has_all_of_its_pieces() -> None:
    pieces = AnswerPieces()
    pieces.add(
        "One", Extra([1], reasoning="hm", calls=[NAME, CallDelta(0, arguments="{"), CallDelta(0, arguments="}")])
    )
    pieces.add("", Extra([2], calls=[END, "Two", CallDelta(1, id="b", name="g")]))
    pieces.add("", Extra(calls=[CallDelta(1, arguments="[1"), CallDelta(1, invalid="arguments", ended=True)]))
    assert (pieces.text, pieces.reasoning, pieces.tokens) == ("OneTwo", "hm", [1, 2])
    calls = [ToolCall("a", FunctionCall("f", "{}")), ToolCall("b", FunctionCall("g", "[1"), invalid="arguments")]
    assert pieces.calls == calls
    chunks = pieces.chunks(1, 0)
    assert joined_calls(delta for chunk in chunks for delta in chunk.tool_calls or ()) == calls
