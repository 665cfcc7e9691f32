"""Images and sounds of files, in `carctl infer` and `carctl chat`."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.carctl.media import MOST_BYTES
from car_protocol.errors import RpcError
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon

TEXT = {"type": "text", "text": "What is it?"}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An image and a sound; the daemon alone reads what is in them."""
    image, sound = tmp_path / "a b.png", tmp_path / "c.wav"
    image.write_bytes(b"\x89PNG\0\xff")
    sound.write_bytes(b"RIFF\0")
    return image, sound


def part(kind: str, file: Path) -> dict[str, str]:
    return {"type": kind, "data": base64.b64encode(file.read_bytes()).decode()}


def asked(daemon: FakeDaemon) -> Any:
    """Return the messages of the last request."""
    return daemon.params("infer_stream")["messages"]


def test_images_and_sounds_come_before_the_text_in_the_order_of_the_command_line(
    daemon: FakeDaemon, files: tuple[Path, Path]
) -> None:
    image, sound = files
    flags = ("--sound", sound, "--image", image, "--sound", sound)
    done = carctl("--socket", daemon.path, "infer", "What is it?", *flags)
    assert (done.returncode, done.stdout) == (0, b"Hello\n")
    parts = [part("audio", sound), part("image", image), part("audio", sound)]
    assert asked(daemon) == [{"role": "user", "content": [*parts, TEXT]}]


def test_a_question_without_files_is_a_text(daemon: FakeDaemon) -> None:
    assert carctl("--socket", daemon.path, "infer", "What is it?").returncode == 0
    assert asked(daemon) == [{"role": "user", "content": "What is it?"}]


@pytest.mark.parametrize("flags", [("--raw",), ("--suffix", "b")])
def test_what_is_not_a_conversation_takes_no_files(
    daemon: FakeDaemon, files: tuple[Path, Path], flags: tuple[str, ...]
) -> None:
    done = carctl("--socket", daemon.path, "infer", "Hi", "--image", files[0], *flags)
    assert done.returncode == 2
    assert b"leave --raw and --suffix out" in done.stderr


def test_a_model_without_a_chat_template_is_not_sent_the_bare_text_in_place_of_the_image(
    daemon: FakeDaemon, files: tuple[Path, Path]
) -> None:
    daemon.answers["infer_stream"] = RpcError("model_unavailable", lacks="chat_template")
    done = carctl("--socket", daemon.path, "infer", "Hi", "--image", files[0])
    assert done.returncode == 1
    assert b"lacks chat_template" in done.stderr
    assert "messages" in daemon.params("infer_stream")


@pytest.mark.parametrize("command", [("infer", "Hi"), ("chat",)])
@pytest.mark.parametrize(
    ("size", "why"), [(None, "no such file or directory"), (0, "the file is empty"), (MOST_BYTES + 1, "over the limit")]
)
def test_a_file_that_cannot_be_sent_is_named_with_the_reason(
    tmp_path: Path, command: tuple[str, ...], size: int | None, why: str
) -> None:
    file = tmp_path / "a.png"
    if size is not None:
        file.write_bytes(bytes(size))
    done = carctl(*command, "--image", file)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{file}: {why}" in done.stderr.decode()


def test_a_chat_sends_the_files_of_its_start_once_and_keeps_them_in_the_conversation(
    daemon: FakeDaemon, files: tuple[Path, Path], tmp_path: Path
) -> None:
    image, sound = files
    saved = tmp_path / "talk.json"
    lines = f"What is it?\n/sound {sound}\nAnd?\n/save {saved}\n"
    done = carctl("--socket", daemon.path, "chat", "--image", image, input=lines.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    first = {"role": "user", "content": [part("image", image), TEXT]}
    second = {"role": "user", "content": [part("audio", sound), {"type": "text", "text": "And?"}]}
    said = {"role": "assistant", "content": "Hello"}
    assert asked(daemon) == [first, said, second]
    assert msgspec.json.decode(saved.read_bytes())["messages"] == [first, said, second, said]


def test_a_chat_says_why_a_file_is_not_attached_and_forgets_attached_ones_at_a_reset(
    daemon: FakeDaemon, files: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = f"/image\n/image {tmp_path}/none.png\n/image {files[0]}\n/reset\nHi\n"
    done = carctl("--socket", daemon.path, "chat", input=lines.encode())
    assert done.stdout.decode().splitlines() == [
        "name the file: /image FILE or /sound FILE",
        f"not attached: {tmp_path}/none.png: no such file or directory",
        f"{files[0]} goes with the next question",
        "the conversation is empty",
        "Hello",
    ]
    assert asked(daemon) == [{"role": "user", "content": "Hi"}]
