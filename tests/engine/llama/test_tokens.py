"""Text into tokens and back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from car_base.ipc.refusal import Refusal
from car_engine.llama.tokens import Vocabulary
from tests.engine.llama.conftest import loaded
from tools.hostile_models.values import text as as_text
from tools.hostile_models.values import with_value
from tools.random_models.llama import generate


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back_as_it_was(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
    assert vocabulary.detokenize(tokens, special=False) == text
    assert all(0 <= token < vocabulary.size for token in tokens)


@pytest.mark.parametrize("text", ["", "a", "é€😀", "one  two\n\n three", "\0", "x" * 5000])
def test_a_text_is_the_sum_of_its_pieces(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(vocabulary.pieces[token] for token in tokens) == text.encode()


def test_the_begin_token_is_added_where_it_was_asked_for(vocabulary: Vocabulary) -> None:
    plain = vocabulary.tokenize("hi", add_special=False, parse_special=False)
    begun = vocabulary.tokenize("hi", add_special=True, parse_special=False)
    assert begun == ([vocabulary.begin, *plain] if vocabulary.adds_begin else plain)


def test_a_control_token_in_text_is_one_token_only_when_parsed(vocabulary: Vocabulary) -> None:
    assert vocabulary.specials
    for special in vocabulary.specials:
        parsed = vocabulary.tokenize(special, add_special=False, parse_special=True)
        plain = vocabulary.tokenize(special, add_special=False, parse_special=False)
        assert len(parsed) == 1
        assert vocabulary.text_of(parsed[0]) == special
        assert parsed[0] not in plain
        assert vocabulary.detokenize(plain, special=False) == special


def test_control_tokens_are_written_out_only_where_asked(vocabulary: Vocabulary) -> None:
    (token,) = vocabulary.tokenize(vocabulary.specials[0], add_special=False, parse_special=True)
    assert vocabulary.detokenize([token], special=False) == ""
    assert vocabulary.detokenize([token], special=True) == vocabulary.specials[0]


def test_bytes_that_are_no_text_are_replaced(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.tokenize("€", add_special=False, parse_special=False)
    assert len(tokens) > 1
    assert "\ufffd" in vocabulary.detokenize(tokens[:1], special=False)


def test_a_text_for_which_the_model_has_no_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    generate(path, "tiny")
    path.write_bytes(with_value(path.read_bytes(), "tokenizer.ggml.model", as_text("rwkv")))
    with loaded(path) as model:
        vocabulary = Vocabulary(model)
        assert vocabulary.tokenize("Hi", add_special=False, parse_special=False)
        with pytest.raises(Refusal) as caught:
            vocabulary.tokenize("Hi\n", add_special=False, parse_special=False)
        assert caught.value.data["lacks"] == "tokens"
        assert vocabulary.token_of("\n") is None


def test_there_is_an_end_token_and_no_text_for_none(vocabulary: Vocabulary) -> None:
    assert vocabulary.ends
    assert all(0 <= end < vocabulary.size for end in vocabulary.ends)
    assert vocabulary.text_of(-1) == vocabulary.text_of(vocabulary.size) == ""


def test_no_piece_is_longer_than_the_longest(vocabulary: Vocabulary) -> None:
    assert vocabulary.longest_piece >= max(map(len, vocabulary.pieces))
    assert len(vocabulary.pieces) == vocabulary.size


@pytest.mark.parametrize("spaces", ["  ", " " * 100, " \n ", "\n\n", "\u3000 ", "\t\t"])
def test_white_space_ends_no_process_where_words_are_cut_at_it(tmp_path: Path, spaces: str) -> None:
    pytest.importorskip("gguf")
    from tools.random_model import generate

    generate(tmp_path / "model.gguf", "tiny", "f32", pre="whitespace")
    with loaded(tmp_path / "model.gguf") as model:
        cut = [
            Vocabulary(model).tokenize(text, add_special=False, parse_special=False)
            for text in ("a b", f"a{spaces}b", f"{spaces}a b{spaces}")
        ]
    assert len(cut[0]) == 2
    assert cut == [cut[0]] * 3


def test_the_pieces_that_are_shown_are_made_once(vocabulary: Vocabulary) -> None:
    marker = (vocabulary.specials[0],)
    assert vocabulary.showing(()) is vocabulary.pieces
    assert vocabulary.showing(marker) is vocabulary.showing(marker) is not vocabulary.pieces
    assert marker[0].encode() in vocabulary.showing(marker)


def test_a_text_that_its_rules_make_longer_is_cut_whole(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, cut = "made longer by its rules", vocabulary._cut
    rooms: list[int] = []
    expected = vocabulary.tokenize(text, add_special=True, parse_special=False)

    def cut_short(data: bytes, room: int, *, add_special: bool, parse_special: bool) -> tuple[int, Any]:
        rooms.append(room)
        return cut(data, room if len(rooms) > 1 else 1, add_special=add_special, parse_special=parse_special)

    monkeypatch.setattr(vocabulary, "_cut", cut_short)
    assert vocabulary.tokenize(text, add_special=True, parse_special=False) == expected
    assert rooms[1:] == [len(expected)]
