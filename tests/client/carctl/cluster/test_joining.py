"""`carctl cluster join`, with a program in the place of Ray's and a socket in the place of a head."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from car_client.carctl.cluster.head import ClusterHead, TokenError, check_token
from car_client.carctl.cluster.joining import JoinFailed, ray_command, unit
from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.pace import HANG_S

RAY = """#!/bin/sh
echo "ray $*"
echo "mode $RAY_AUTH_MODE, token of $RAY_AUTH_TOKEN_PATH, in the environment: ${RAY_AUTH_TOKEN:-none}"
exit ${FAKE_RAY_CODE:-0}
"""
SECRET = "a-secret-that-is-never-printed"
# The modules of Ray by which card asks a head: it takes the secret, and no client without it unless it is open.
RAY_MODULES = {
    "__init__": "",
    "exceptions": "class AuthenticationError(Exception): pass",
    "_private/__init__": "",
    "_private/services": "def canonicalize_bootstrap_address(address): return address",
    "_raylet": f"""
import os
from ray.exceptions import AuthenticationError
class AuthenticationTokenLoader:
    instance = classmethod(lambda cls: cls())
    def has_token(self, ignore_auth_mode): return os.path.exists(os.environ["RAY_AUTH_TOKEN_PATH"])
class Config:
    initialize = staticmethod(lambda text: None)
def GcsClient(address):
    head = os.environ.get("FAKE_HEAD", "closed")
    if head == "none of Ray":
        raise RuntimeError("RPC error: 404\\nmore")
    token = open(os.environ["RAY_AUTH_TOKEN_PATH"]).read() if os.environ["RAY_AUTH_MODE"] == "token" else ""
    if head == "closed" and token != {SECRET!r}:
        raise AuthenticationError("InvalidAuthToken")
""",
}


class Node:
    """A machine with Ray, as far as `carctl` sees it: its package, its command and a home."""

    def __init__(self, folder: Path, version: str = "2.60.0") -> None:
        self.token = folder / "home" / ".ray" / "auth_token"
        packages, self.programs = folder / "packages", folder / "programs"
        about = packages / f"ray-{version}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
        for name, text in RAY_MODULES.items():
            module = packages / "ray" / f"{name}.py"
            module.parent.mkdir(exist_ok=True)
            module.write_text(text)
        self.programs.mkdir()
        (self.programs / "ray").touch(0o755)
        (self.programs / "ray").write_text(RAY)
        path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        self.env = {"HOME": str(folder / "home"), "PYTHONPATH": path, "TERM": "xterm"}

    def write_token(self, mode: int = 0o600, text: str = SECRET) -> None:
        self.token.parent.mkdir(parents=True)
        self.token.write_text(text)
        self.token.chmod(mode)

    def join(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
        # In the folder of Ray's command, because commands are looked for beside the one that runs.
        return carctl("cluster", "join", *arguments, env=self.env | env, cwd=self.programs)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a port that takes connections, as a head's does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_node_is_started_for_the_head_with_the_token_of_rays_file(node: Node, head: str) -> None:
    node.write_token()
    done = node.join(head)
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[0] == f"joining {head} with the token of {node.token}; Ctrl-C leaves the cluster"
    assert lines[1].endswith(f"{node.programs / 'ray'} start --address={head} --block")
    assert lines[2] == f"ray start --address={head} --block"
    assert lines[3] == f"mode token, token of {node.token}, in the environment: none"


def test_the_token_is_on_no_command_line_in_no_output_and_not_in_the_environment(node: Node, head: str) -> None:
    node.write_token()
    done = node.join(head, RAY_AUTH_TOKEN=SECRET)
    assert done.returncode == 0
    assert SECRET.encode() not in done.stdout + done.stderr


def test_options_after_the_dashes_are_rays(node: Node, head: str) -> None:
    node.write_token()
    for named in ((), ("--token", str(node.token))):
        done = node.join(head, *named, "--", "--num-cpus=4", "--labels", "pool=a")
        assert f"ray start --address={head} --block --num-cpus=4 --labels pool=a".encode() in done.stdout


def test_a_token_file_can_be_named(node: Node, head: str, tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text(SECRET)
    file.chmod(0o600)
    assert f"token of {file}," in node.join(head, "--token", str(file)).stdout.decode()


def test_a_token_that_is_missing_is_read_from_the_terminal_into_rays_file(node: Node, head: str) -> None:
    with carctl_on_terminal("cluster", "join", head, env=node.env, cwd=node.programs) as terminal:
        terminal.read_until(b"ray get-auth-token`): ")
        terminal.type(f"{SECRET}\n".encode())
        shown = terminal.end()
    assert node.token.read_text() == SECRET
    assert stat.S_IMODE(node.token.stat().st_mode) == 0o600
    assert f"write {node.token}, for this user alone".encode() in shown
    assert SECRET.encode() not in shown


def test_without_a_terminal_a_missing_token_is_an_error_with_advice(node: Node, head: str) -> None:
    done = node.join(head)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"carctl: {node.token} is missing: copy the token file of the head")


@pytest.mark.parametrize(
    ("mode", "text", "part"),
    [
        (0o644, SECRET, "(mode 644): run chmod 600"),
        (0o620, SECRET, "(mode 620): run chmod 600"),
        (0o600, " \n", "is empty: on the head, `ray get-auth-token`"),
        (0o600, "x" * 5000, "is not a token"),
    ],
)
def test_a_token_file_that_cannot_be_right_is_refused(node: Node, head: str, mode: int, text: str, part: str) -> None:
    node.write_token(mode, text)
    done = node.join(head)
    assert (done.returncode, done.stdout) == (1, b"")
    assert part in done.stderr.decode()


def test_a_folder_is_no_token(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="is a directory: copy the token file of the head"):
        check_token(tmp_path)


def test_a_head_that_does_not_answer_is_named_before_anything_starts(node: Node) -> None:
    node.write_token()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = node.join(address)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"carctl: {address}: connection refused: start Ray on the head")


@pytest.mark.parametrize(
    ("token", "head_is", "part"),
    [
        ("another", "closed", "the token in {token} is not that of the cluster at {head}: copy the head's there"),
        (SECRET, "open", "the Ray head at {head} takes clients without a token: start every node with RAY_AUTH_MODE="),
        (SECRET, "none of Ray", "the Ray head at {head} does not answer: RPC error: 404\n"),
    ],
)
def test_a_head_that_takes_no_such_node_is_an_error_in_a_line_before_ray_starts(
    node: Node, head: str, token: str, head_is: str, part: str
) -> None:
    node.write_token(text=token)
    done = node.join(head, FAKE_HEAD=head_is)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert done.stderr.decode().startswith(f"carctl: {part.format(token=node.token, head=head)}")


def test_rays_exit_code_is_the_commands(node: Node, head: str) -> None:
    node.write_token()
    assert node.join(head, FAKE_RAY_CODE="7").returncode == 7


def test_a_command_of_ray_that_does_not_run_is_an_error(node: Node, head: str) -> None:
    node.write_token()
    (node.programs / "ray").write_text("#!/no/such/shell\n")
    done = node.join(head)
    assert (done.returncode, b"ray: no such file or directory" in done.stderr) == (1, True)


def test_a_signal_to_the_command_reaches_ray(node: Node, head: str) -> None:
    node.write_token()
    (node.programs / "ray").write_text("#!/bin/sh\ntrap 'exit 5' TERM\necho runs\nwhile :; do sleep 0.05; done\n")
    program = "from car_client.carctl.main import main; main()"
    command = [sys.executable, "-c", program, "cluster", "join", head]
    with subprocess.Popen(command, env=os.environ | node.env, cwd=node.programs, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"runs\n":
            pass
        process.terminate()
        assert process.wait(HANG_S) == 5


def test_without_ray_the_command_that_installs_it_is_named() -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    with pytest.raises(JoinFailed, match=r"pip install 'card-daemon\[cluster\]'"):
        ray_command(missing)


@pytest.mark.parametrize("version", ["2.9.3", "1.13.0", "2.59.1"])
def test_a_ray_that_is_too_old_is_named_with_both_versions(tmp_path: Path, version: str) -> None:
    done = Node(tmp_path, version).join("10.0.0.1:6379")
    assert done.returncode == 1
    assert f"Ray {version} is older than 2.60: pip install".encode() in done.stderr


@pytest.mark.parametrize("text", ["", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "ray://10.0.0.1:1", "a b:1", "::1"])
def test_what_is_no_address_of_a_head_is_refused(node: Node, text: str) -> None:
    done = node.join(text)
    assert (done.returncode, b"is not HOST:PORT" in done.stderr) == (2, True)


@pytest.mark.parametrize("text", ["10.0.0.1:6379", "head.example:1", "[fd00::1]:6379", "localhost:65535"])
def test_the_address_of_a_head_is_read_and_written_alike(text: str) -> None:
    assert str(ClusterHead.parse(text)) == text


def test_a_unit_joins_at_each_start_and_again_after_a_cut(node: Node, head: str) -> None:
    node.write_token()
    printed = node.join(head, "--unit").stdout.decode()
    assert f'ExecStart="{node.programs / "ray"}" "start" "--address={head}" "--block"' in printed.splitlines()
    assert f'Environment="RAY_AUTH_TOKEN_PATH={node.token}"' in printed.splitlines()
    assert "Restart=always" in printed.splitlines()
    assert SECRET not in printed


def test_a_unit_quotes_what_systemd_would_read_otherwise() -> None:
    text = unit(ClusterHead("h", 1), {"A": '50% "b" $c'}, ["/a b/ray", "x\\y$z"])
    assert 'Environment="A=50%% \\"b\\" $c"' in text
    assert 'ExecStart="/a b/ray" "x\\\\y$$z"' in text
