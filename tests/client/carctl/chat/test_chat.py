"""`carctl chat`: lines in, answers out, commands, and what Ctrl-C and Ctrl-D do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from car_client.carctl.terminal.keyboard import plain_line
from car_protocol.errors import RpcError
from tests.client.carctl.command import Terminal, carctl, carctl_on_pipe, carctl_on_terminal, interrupt
from tests.client.fake_daemon import FakeDaemon, once_asked

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


def said(daemon: FakeDaemon, *lines: str, arguments: tuple[str, ...] = ()) -> str:
    """Return what a chat of these lines shows."""
    done = carctl("--socket", daemon.path, "chat", *arguments, input="".join(f"{line}\n" for line in lines).encode())
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_every_question_is_asked_with_the_turns_before_it(daemon: FakeDaemon) -> None:
    assert said(daemon, "Hi", "", "And?") == "Hello\nHello\n"
    assert daemon.params("infer_stream")["messages"] == [USER, ANSWER, {"role": "user", "content": "And?"}]


def test_options_and_the_system_message_go_with_every_question(daemon: FakeDaemon) -> None:
    said(daemon, "Hi", "Hi", arguments=("--system", "Be brief", "--temperature", "0", "--model", "guide"))
    params = daemon.params("infer_stream")
    assert (params["temperature"], params["model"]) == (0, "guide")
    assert params["messages"] == [{"role": "system", "content": "Be brief"}, USER, ANSWER, USER]


def test_reset_forgets_the_turns_and_keeps_the_rest(daemon: FakeDaemon) -> None:
    said(daemon, "/system Be brief", "Hi", "/reset", "Hi")
    assert daemon.params("infer_stream")["messages"] == [{"role": "system", "content": "Be brief"}, USER]


def test_the_system_message_can_be_taken_away(daemon: FakeDaemon) -> None:
    said(daemon, "/system Be brief", "/system", "Hi")
    assert daemon.params("infer_stream")["messages"] == [USER]


def test_another_model_answers_once_it_is_named(daemon: FakeDaemon) -> None:
    shown = said(daemon, "/model", "/model gude", "/model guide", "Hi")
    assert shown == (
        "guide\nunknown model 'gude', did you mean 'guide'?; /model lists them\nguide answers from now on\nHello\n"
    )
    assert daemon.params("infer_stream")["model"] == "guide"


def test_save_writes_the_conversation_and_overwrites_nothing(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    shown = said(daemon, "/system Be brief", "Hi", f"/save {file}", f"/save {file}", "/save", f"/save {tmp_path}/a/b")
    assert msgspec.json.decode(file.read_bytes()) == {
        "model": None,
        "messages": [{"role": "system", "content": "Be brief"}, USER, ANSWER],
    }
    assert f"2 turns are in {file}" in shown
    assert "not saved: file exists" in shown
    assert "name the file: /save FILE" in shown
    assert "not saved: no such file or directory" in shown


def test_help_names_every_command(daemon: FakeDaemon) -> None:
    shown = said(daemon, "/help")
    assert all(f"/{name}" in shown for name in ("model NAME", "save FILE", "system TEXT", "reset", "help"))


def test_an_unknown_command_is_not_sent_to_the_model(daemon: FakeDaemon) -> None:
    assert said(daemon, "/rest") == "unknown command /rest, did you mean 'reset'?; /help lists the commands\n"
    assert "infer_stream" not in [call.method for call in daemon.calls]


def test_two_slashes_ask_what_begins_with_one(daemon: FakeDaemon) -> None:
    said(daemon, "//etc is what?")
    assert daemon.params("infer_stream")["messages"][-1]["content"] == "/etc is what?"


def test_an_error_is_told_and_the_conversation_goes_on_without_the_question(daemon: FakeDaemon) -> None:
    daemon.answers["infer_stream"] = RpcError("context_exceeded", prompt_tokens=9, max_tokens=1, context_tokens=8)
    done = carctl("--socket", daemon.path, "chat", input=b"Hi\nHi\n")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"carctl: context_exceeded: ") == 2
    assert done.stderr.endswith(b"\ncarctl: not every line was answered\n")
    assert daemon.params("infer_stream")["messages"] == [USER]


def test_a_daemon_that_goes_away_ends_a_piped_chat_as_it_ends_every_command(daemon: FakeDaemon) -> None:
    daemon.silent_after = 0
    with once_asked(daemon, "infer_stream", daemon.drop):
        assert carctl("--socket", daemon.path, "chat", input=b"Hi\n").returncode == 69


def test_ctrl_c_ends_a_piped_chat(daemon: FakeDaemon) -> None:
    with carctl_on_pipe("--socket", daemon.path, "chat") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"/reset\n")
        process.stdin.flush()
        process.stdout.readline()
        interrupt(process)
    assert process.returncode == 130


def test_a_file_that_cannot_be_does_not_end_the_conversation(daemon: FakeDaemon) -> None:
    shown = said(daemon, "/save ~nosuchuser/x", "/save a\0b", "Hi")
    assert shown.splitlines() == [
        "not saved: no such file or directory",
        "not saved: the name holds a null byte",
        "Hello",
    ]


def test_stats_follow_every_answer(daemon: FakeDaemon) -> None:
    assert "3 prompt tokens" in said(daemon, "Hi", arguments=("--stats",))


def test_without_a_daemon_it_ends_at_once(path: Path) -> None:
    assert carctl("--socket", path, "chat", input=b"Hi\n").returncode == 69


class Talk:
    """A chat on a terminal, which reads each line once its prompt shows."""

    def __init__(self, terminal: Terminal, prompt: bytes) -> None:
        self.terminal = terminal
        self._prompt = prompt
        self._lines = 0

    def type(self, keys: bytes) -> None:
        """Press keys at the next prompt."""
        self._lines += 1
        self.terminal.read_until(self._prompt, self._lines)
        self.terminal.type(keys)

    def interrupt_after(self, shown: bytes) -> None:
        """Press Ctrl-C once that was shown."""
        self.terminal.read_until(shown)
        interrupt(self.terminal.process)

    def quit(self) -> int:
        """Press Ctrl-D at the next prompt; returns the exit code."""
        self.type(b"\x04")
        self.terminal.end()
        return self.terminal.process.returncode


@contextmanager
def talking(daemon: FakeDaemon, editor: str = "prompt_toolkit") -> Iterator[Talk]:
    """Run a chat on a terminal."""
    env = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    edited = editor == "prompt_toolkit"
    without = () if edited else ("prompt_toolkit",)
    with carctl_on_terminal("--socket", daemon.path, "chat", env=env, without=without) as terminal:
        # The editor asks for bracketed paste at every prompt, when it reads keys.
        yield Talk(terminal, b"\x1b[?2004h" if edited else b"> ")


EDITORS = pytest.mark.parametrize("editor", ["prompt_toolkit", "plain"])


@EDITORS
def test_ctrl_c_cancels_the_answer_and_not_the_program(daemon: FakeDaemon, editor: str) -> None:
    daemon.silent_after = 1
    with talking(daemon, editor) as talk:
        talk.type(b"Hi\r")
        talk.interrupt_after(b"Hel")
        talk.terminal.read_until(b"cancelled")
        daemon.silent_after = None
        talk.type(b"And?\r")
        talk.terminal.read_until(b"Hello")
        assert talk.quit() == 0
    assert daemon.params("$/cancelRequest") == {"id": daemon.wait_for("infer_stream").id}
    assert daemon.params("infer_stream")["messages"][1] == {"role": "assistant", "content": "Hel"}


def test_ctrl_c_at_the_prompt_gives_the_line_up(daemon: FakeDaemon) -> None:
    with talking(daemon) as talk:
        talk.type(b"wrong")
        talk.terminal.read_until(b"wrong")
        talk.terminal.type(b"\x03")
        talk.type(b"Hi\r")
        talk.terminal.read_until(b"Hello")
        assert talk.quit() == 0
    assert daemon.params("infer_stream")["messages"] == [USER]


def test_without_the_editor_ctrl_c_and_ctrl_d_leave_the_cursor_on_a_new_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = iter([KeyboardInterrupt, EOFError])

    def pressed(prompt: str) -> str:
        print(prompt, end="")
        raise next(ends)

    monkeypatch.setattr("builtins.input", pressed)
    for end in (KeyboardInterrupt, EOFError):
        with pytest.raises(end):
            plain_line("> ")
        assert capsys.readouterr().out == "> \n"


def test_an_answer_cancelled_before_its_first_word_leaves_no_turn(daemon: FakeDaemon) -> None:
    daemon.silent_after = 0
    with talking(daemon) as talk:
        talk.type(b"Hi\r")
        daemon.wait_for("infer_stream")
        talk.interrupt_after(b"Hi")
        talk.terminal.read_until(b"cancelled")
        daemon.silent_after = None
        talk.type(b"Hi\r")
        talk.terminal.read_until(b"Hello")
    assert daemon.params("infer_stream")["messages"] == [USER]


def test_a_second_ctrl_c_leaves_a_daemon_that_does_not_answer_to_the_first(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    daemon.silent.add("$/cancelRequest")
    with talking(daemon) as talk:
        talk.type(b"Hi\r")
        talk.interrupt_after(b"Hel")
        daemon.wait_for("$/cancelRequest")
        talk.interrupt_after(b"Hel")
        daemon.wait_until_gone()
        assert talk.quit() == 0


def test_the_line_before_comes_back_with_the_arrow(daemon: FakeDaemon) -> None:
    with talking(daemon) as talk:
        talk.type(b"Hi\r")
        talk.type(b"\x1b[A\r")
        daemon.wait_for("infer_stream", 2)
    assert daemon.params("infer_stream")["messages"] == [USER, ANSWER, USER]


def test_a_chat_of_several_answers_is_refused(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "chat", "--param", "n=2", input=b"Hi\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"leave n out" in done.stderr
