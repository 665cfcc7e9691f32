"""Real children: their limits, their confinement, and their end."""

import json
import platform
import sys
from pathlib import Path

import pytest

from car_base.host.kernel_sandbox import landlock_abi
from car_base.ipc.frames import Chat
from car_engine.child.children import ChildLost
from car_engine.child.frames import Defect, Invalid, Opened, OpenTemplate, Render, Segments
from car_protocol.conversation import Message
from tests.engine.child.servers import real_children

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits and sandboxes are Linux's")
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
# A search from the right compares 10 million characters at each of 10 million places, in one call.
SEARCH = "{{ ('a' * 20000000).rfind('ab' ~ 'a' * 10000000) }}"
HELD = "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set _ = n.l.append('a' * 999999 ~ i) %}{% endfor %}"
TRICKS = {
    "loop": LOOP,
    "search": SEARCH,
    "held": HELD,
    "large": "{{ 'a' * 10000000000 }}",
    "power": "{{ 7 ** 7 ** 9 }}",
}
TEMPLATE = "".join(f"{{% if messages[0].content == '{name}' %}}{trick}{{% endif %}}" for name, trick in TRICKS.items())


def opening(source: str) -> OpenTemplate:
    return OpenTemplate("chat", source, "<s>", "</s>", [])


def render(text: str) -> Render:
    return Render("chat", Chat(messages=[Message("user", text)]), 100)


def test_a_child_opens_a_template_and_renders_chats() -> None:
    with real_children() as children:
        assert children.ask(opening("{{ messages[0].content }}!{{ tools }}")) == Opened(takes_tools=True)
        for _ in range(3):
            assert children.ask(render("hi")) == Segments(7, [("hi!None", True)])
        assert children.ask(opening("{% if %}")) == Invalid(
            "line 1: Expected an expression, got 'end of statement block'"
        )


@on_linux
@pytest.mark.parametrize("trick", ["held", "large", pytest.param("search", marks=pytest.mark.slow)])
def test_a_template_that_takes_too_much_costs_its_child_and_the_next_chat_is_rendered(trick: str) -> None:
    with real_children() as children:
        children.ask(opening(TEMPLATE + "{{ messages[0].content }}"))
        for _ in range(2):
            with pytest.raises(ChildLost):
                children.ask(render(trick))
            assert children.ask(render("hi")) == Segments(2, [("hi", True)])


@on_linux
@pytest.mark.slow
def test_a_template_that_does_not_end_is_ended_also_while_it_is_opened() -> None:
    with real_children() as children:
        with pytest.raises(ChildLost):
            children.ask(opening(LOOP))
        assert children.ask(opening("{{ messages[0].content }}")) == Opened(takes_tools=False)
        assert children.ask(render("hi")) == Segments(2, [("hi", True)])


# The work of a child that tries what is forbidden.
PROBE = """
import json, os, socket
from car_engine.child.frames import Defect
from car_engine.confinement import confine_child as confine

secret = {secret!r}
attempts = {{
    "read": lambda: open(secret, "rb").close(),
    "list": lambda: os.listdir(os.path.dirname(secret)),
    "create": lambda: open(secret + "-new", "wb").close(),
    "write": lambda: open(secret, "ab").close(),
    "remove": lambda: os.unlink(secret),
    "socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "tcp": lambda: socket.socket(socket.AF_INET).close(),
    "pair": socket.socketpair,
    "fork": os.fork,
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "process": lambda: open(f"/proc/{{os.getppid()}}/environ", "rb").close(),
    "limit": lambda: __import__("resource").setrlimit(9, (-1, -1)),
    "file": lambda: os.truncate(secret, 1 << 30),
}}

def work(job):
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
            done.append(name)
        except (OSError, ValueError):
            pass
    return Defect(json.dumps(done))
"""


@on_linux
@pytest.mark.skipif(
    landlock_abi() == 0 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or this machine no filter of system calls",
)
def test_a_child_reads_and_writes_no_files_and_reaches_no_process_and_no_network(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with real_children(PROBE.format(secret=str(secret))) as children:
        answer = children.ask(render("hi"))
    assert isinstance(answer, Defect)

    assert json.loads(answer.fault) == []
    assert secret.read_text() == "secret"
