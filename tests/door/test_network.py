"""Other machines at the door: TLS and keys alone, and bounds by address. 127.0.0.9 is the hostile neighbour here."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from car_client.door.certificate import (
    CertificateError,
    Trust,
    check_pair,
    fingerprint,
    pinning,
    refusal,
    serving,
    trusted_by,
)
from car_client.door.settings import SettingsError, TlsPort, load_settings
from car_http.command import run
from car_http.crowds import WRONG_KEY_S, WRONG_KEYS, Strangers, Visitors, WrongKeys
from car_http.network import TlsListener, counted_as, plain_address
from car_http.problems import Problem
from car_http.protocol import DoorProtocol, DoorState, Visit
from car_http.server import bound
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import DoorProcess, door_before
from tests.pace import HANG_S
from tests.ports import free_port

making = pytest.importorskip("car_client.carctl.http.self_signed", reason="certificates need the package cryptography")
from cryptography import x509  # noqa: E402 - after that
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

HOME, NEIGHBOUR, OTHER = "127.0.0.1", "127.0.0.9", "127.0.0.8"
pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="only Linux has all of 127.0.0.0/8")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for names of this machine, and its key."""
    folder = tmp_path_factory.mktemp("pair")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    assert making.ensure_certificate(certificate, key, ["card.example"], [])
    return certificate, key


class LanDoor:
    """A door that other machines reach, with its certificate, before a fake daemon."""

    def __init__(self, door: DoorProcess, port: int, certificate: Path) -> None:
        self.door = door
        self.port = port
        self.certificate = certificate

    def connect(self, source: str = HOME) -> HTTPSConnection:
        """Return a connection from an address, that trusts this certificate alone."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        return HTTPSConnection(HOME, self.port, timeout=HANG_S, source_address=(source, 0), context=context)

    def status(self, key: str | None, source: str = HOME, **headers: str) -> int:
        """Return the status of the list of models."""
        with contextlib.closing(self.connect(source)) as connection:
            given = {} if key is None else {"Authorization": f"Bearer {key}"}
            connection.request("GET", "/v1/models", headers=given | headers)
            with connection.getresponse() as response:
                response.read()
                return response.status

    def silent(self, source: str = NEIGHBOUR) -> socket.socket:
        """Return a connection that sends nothing, not even its part of a handshake."""
        return socket.create_connection((HOME, self.port), timeout=HANG_S, source_address=(source, 0))


@contextlib.contextmanager
def lan_door(folder: Path, daemon: Path, pair: tuple[Path, Path], *under: str) -> Iterator[LanDoor]:
    """Run a door whose `https://` address is of this machine, because tests reach no other."""
    port = free_port()
    config = folder / "card.toml"
    certificate, key = pair
    keys = folder / "config" / "car" / "http-keys"
    table = {"hosts": ["card.example"], "keys": str(keys), "certificate": str(certificate), "private_key": str(key)}
    config.write_text("[http]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items()))
    flags = ("--config", str(config), "--listen", f"https://{HOME}:{port}")
    with door_before(folder, daemon, *flags, under=under) as door:
        yield LanDoor(door, port, certificate)


@pytest.fixture
def lan(fake: FakeDaemon, folder: Path, pair: tuple[Path, Path]) -> Iterator[LanDoor]:
    """A door of this test alone."""
    with lan_door(folder, fake.path, pair) as door:
        yield door


def test_a_request_by_tls_with_a_key_is_answered_and_the_other_sockets_serve_on(lan: LanDoor) -> None:
    assert lan.status(lan.door.key) == 200
    assert lan.status(None) == 401
    with socket.create_connection((HOME, lan.door.port), timeout=HANG_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert plain.recv(12) == b"HTTP/1.1 200"


def test_plain_http_gets_no_answer_and_reaches_nothing(lan: LanDoor, fake: FakeDaemon) -> None:
    calls = len(fake.calls)
    with lan.silent() as plain:
        request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {lan.door.key}\r\n\r\n"
        plain.sendall(request.encode())
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := plain.recv(65536):
                received += data
    assert b"HTTP" not in received
    assert len(fake.calls) == calls


def test_a_client_that_trusts_another_certificate_sends_nothing(lan: LanDoor, folder: Path) -> None:
    other = folder / "other.pem"
    making.ensure_certificate(other, folder / "other-key.pem", ["card.example"], [])
    lan.certificate = other
    with pytest.raises(ssl.SSLCertVerificationError):
        lan.status("any key")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("card.example", 200),
        ("127.0.0.1:1", 200),
        ("evil.example", 403),
        ("192.168.1.7", 403),
        ("card.example.evil.example", 403),
        ("", 403),
    ],
)
def test_a_host_has_to_name_this_machine(lan: LanDoor, host: str, expected: int) -> None:
    assert lan.status(lan.door.key, Host=host) == expected


def test_the_pages_session_is_sent_back_by_tls_alone(lan: LanDoor) -> None:
    with contextlib.closing(lan.connect()) as connection:
        headers = {"Authorization": f"Bearer {lan.door.key}", "Content-Type": "application/json"}
        connection.request("POST", "/card/session", b"{}", headers | {"Origin": f"https://{HOME}:{lan.port}"})
        with connection.getresponse() as response:
            assert "; Secure" in str(response.getheader("set-cookie"))


def test_wrong_keys_are_slowed_by_address_and_known_keys_stay_welcome(lan: LanDoor) -> None:
    second = lan.door.add_key("second")
    assert lan.status(second, NEIGHBOUR) == 200
    wrong, began = 0, time.monotonic()
    with contextlib.closing(lan.connect(NEIGHBOUR)) as connection:
        while True:
            connection.request("GET", "/v1/models", headers={"X-Api-Key": "wrong-key-wrong-key"})
            with connection.getresponse() as response:
                code = json.load(response)["error"]["code"]
                if response.status == 429:
                    break
            passed = time.monotonic() - began
            wrong += 1
            assert (response.status, code) == (401, "invalid_api_key")
            # A slow machine has more attempts, because one is free again in each period.
            assert wrong <= WRONG_KEYS + passed / WRONG_KEY_S
            assert passed < HANG_S
    assert (code, wrong >= WRONG_KEYS) == ("too_many_wrong_keys", True)
    assert int(str(response.getheader("retry-after-ms"))) > 0
    assert lan.status(second, NEIGHBOUR) == 200
    assert lan.status(lan.door.key, OTHER) == 200


def test_wrong_keys_have_a_burst_and_then_a_pace() -> None:
    wrong = WrongKeys()
    for _ in range(WRONG_KEYS):
        wrong.refuse("a", 0.0)
    for act in (partial(wrong.refuse, "a"), partial(wrong.admit, "a", "right")):
        with pytest.raises(Problem) as caught:
            act(0.5)
        assert (caught.value.status, caught.value.retry_after_ms) == (429, 500)
    wrong.admit("b", "right", 0.5)
    wrong.refuse("a", 1.0)
    with pytest.raises(Problem):
        wrong.refuse("a", 1.0)
    wrong.admit("a", "right", 2.0)
    wrong.refuse("a", 2.0)
    wrong.admit("a", "right", 2.0)  # it was right before


def test_a_thousand_silent_connections_of_an_address_leave_the_answers_of_others_coming(
    lan: LanDoor, fake: FakeDaemon
) -> None:
    fake.silent_after = 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(2048))
        streaming = lan.connect()
        stack.callback(streaming.close)
        body = json.dumps({"messages": [{"role": "user", "content": "Go on"}], "stream": True})
        headers = {"Authorization": f"Bearer {lan.door.key}", "Content-Type": "application/json"}
        streaming.request("POST", "/v1/chat/completions", body, headers)
        response = stack.enter_context(streaming.getresponse())
        until(response, b"Hel")
        strangers = [stack.enter_context(lan.silent()) for _ in range(1000)]
        for number, stranger in enumerate(strangers):
            with contextlib.suppress(OSError):  # the oldest have given way
                stranger.sendall(b"\x16\x03\x01" if number % 2 else b"GET / HTTP/1.1\r\n")
        fake.go_on({"text": "more"})
        until(response, b"more")
        assert lan.status(lan.door.key, OTHER) == 200
        assert lan.status(lan.door.key, NEIGHBOUR) == 200


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Allow this process so many descriptors in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def until(response: Any, words: bytes) -> None:
    """Read a stream up to some words."""
    while words not in (line := response.readline()):
        assert line


@pytest.mark.slow
def test_an_address_takes_a_sixteenth_of_the_descriptors_and_its_oldest_stranger_gives_way(
    fake: FakeDaemon, folder: Path, pair: tuple[Path, Path]
) -> None:
    few = ("sh", "-c", 'ulimit -n 256; exec "$0" "$@"')
    with lan_door(folder, fake.path, pair, *few) as lan, contextlib.ExitStack() as stack:
        kept = lan.connect(NEIGHBOUR)
        stack.callback(kept.close)
        assert listed(kept, lan.door.key) == 200
        strangers = [stack.enter_context(lan.silent()) for _ in range(300)]
        assert strangers[0].recv(1) == b""
        assert listed(kept, lan.door.key) == 200
        assert lan.status(lan.door.key, NEIGHBOUR) == 200
        assert lan.status(lan.door.key, OTHER) == 200


def listed(connection: HTTPSConnection, key: str) -> int:
    """Return the status of a request by a connection that stays open."""
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    with connection.getresponse() as response:
        response.read()
        return response.status


class Listening:
    """A listener in this process; `greeted` has the addresses whose handshakes began, in their order."""

    def __init__(self, pair: tuple[Path, Path], pace_s: float, handshake_s: float = HANG_S) -> None:
        self.greeted: list[str] = []
        self.greeting = asyncio.Event()
        self.socket = socket.create_server((HOME, 0))
        self.strangers = Strangers(100)
        config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
        config.load()
        state = DoorState(self.strangers)

        def make(visit: Visit) -> DoorProtocol:
            self.greeted.append(visit.address)
            self.greeting.set()
            return DoorProtocol(config, state, {}, visit=visit)

        self.visitors = Visitors(self.strangers, 50, 100)
        self.listener = TlsListener(
            self.socket, serving(*pair), make, self.strangers, self.visitors, pace_s, handshake_s
        )

    async def open(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a silent connection from an address."""
        host, port = self.socket.getsockname()
        return await asyncio.open_connection(host, port, local_addr=(source, 0))


@asynccontextmanager
async def listening(pair: tuple[Path, Path], pace_s: float, handshake_s: float = HANG_S) -> AsyncIterator[Listening]:
    """Run a listener for the length of a block; nothing counts afterwards."""
    made = Listening(pair, pace_s, handshake_s)
    made.listener.start()
    yield made
    made.listener.close()
    made.socket.close()
    await made.listener.wait_closed()
    assert repr(made.visitors) == "<Visitors 0/100 of 0>"


async def test_handshakes_begin_in_turn_by_address(pair: tuple[Path, Path]) -> None:
    async with listening(pair, 0.3) as made, contextlib.AsyncExitStack() as stack:
        for source in [NEIGHBOUR] * 20 + [OTHER]:
            _, writer = await made.open(source)
            stack.callback(writer.close)
        while OTHER not in made.greeted:
            made.greeting.clear()
            await made.greeting.wait()
        assert made.greeted.index(OTHER) < 10


async def test_a_handshake_that_is_not_done_in_time_ends_the_connection(pair: tuple[Path, Path]) -> None:
    async with listening(pair, 0.0, 0.05) as made:
        reader, writer = await made.open(NEIGHBOUR)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_connections_that_leave_before_their_turn_take_no_place(pair: tuple[Path, Path]) -> None:
    async with listening(pair, HANG_S) as made:
        writers = [(await made.open(NEIGHBOUR))[1] for _ in range(10)]
        for writer in writers:
            writer.close()
        assert repr(made.listener)


def test_the_oldest_stranger_of_an_address_gives_way_to_its_newest_connection() -> None:
    strangers, refused = Strangers(100), list[str]()
    visitors = Visitors(strangers, of_address=2, limit=4)

    def give_way(name: str, address: str) -> None:
        refused.append(name)
        visitors.leave(address)

    def come(name: str, address: str) -> bool:
        entered = visitors.enter(address)
        if entered:
            strangers.add(name, partial(give_way, name, address), address)
        return entered

    assert [come(name, "a") for name in ("a1", "a2", "a3")] == [True] * 3
    assert refused == ["a1"]
    strangers.discard("a2")
    strangers.discard("a3")  # both are admitted
    assert not come("a4", "a")
    assert [come(name, "b") for name in ("b1", "b2")] == [True] * 2
    assert come("c1", "c")  # all have four: the address with most strangers gives way
    assert refused == ["a1", "b1"]


@pytest.mark.parametrize(
    ("host", "reached", "expected"),
    [
        ("192.168.1.7", "192.168.1.2", "192.168.1.7"),
        ("fe80::7", "fe80::2", "fe80::7"),
        ("fd00::7", "fd00::2", "fd00::7"),
        ("2001:db8:1:2::7", "fd00::2", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:9::", "fd00::2", "2001:db8:1:2::/64"),
    ],
)
def test_a_client_counts_by_its_address_and_elsewhere_by_its_network(host: str, reached: str, expected: str) -> None:
    assert counted_as(host, reached) == expected


def test_addresses_are_plain() -> None:
    assert [plain_address(each) for each in ("::ffff:192.168.1.7", "fe80::1%eth0", "::1")] == [
        "192.168.1.7",
        "fe80::1",
        "::1",
    ]


# Settings and files.


def test_a_port_for_other_machines_needs_tls_a_certificate_and_keys(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unix = ["--listen", f"unix:{folder}/s"]
    config = folder / "card.toml"
    config.write_text(f'[http]\nkeys = "{folder}/keys"\n')
    for flags, expected in (
        (["--listen", "0.0.0.0:8322"], "https://ADDRESS:PORT for other machines"),
        (["--listen", f"https://0.0.0.0:{free_port()}"], "carctl http enable --lan"),
        (["--listen", "https://0.0.0.0:8322", "--no-key"], "other machines need keys"),
        (["--listen", "https://laptop.local:8322"], "not an address with a port"),
    ):
        assert run([*unix, *flags, "--config", str(config)]) == 78
        assert expected in capsys.readouterr().err


def test_no_key_and_an_address_for_other_machines_exclude_each_other(tmp_path: Path) -> None:
    config = tmp_path / "card.toml"
    config.write_text('[http]\nlisten = "https://0.0.0.0:8322"\n')
    assert load_settings(config=config).network == (TlsPort("0.0.0.0", 8322),)
    assert load_settings(config=config).network[0].url == "https://0.0.0.0:8322"
    config.write_text('[http]\nlisten = "https://0.0.0.0:8322"\nno_key = true\n')
    with pytest.raises(SettingsError, match="other machines need keys"):
        load_settings(config=config)


# systemd's part: a socket for other machines is descriptor 3 of a process without others.
ADOPTING = """
import os, socket, sys
from car_client.door.settings import TlsPort
from car_http.server import CannotBind, activated
spare = os.dup(0)
given = socket.create_server(("0.0.0.0", 0))
port = given.getsockname()[1]
for network in ([], [TlsPort("0.0.0.0", port + 1)], [TlsPort("0.0.0.0", port)]):
    os.dup2(given.fileno(), 3)
    try:
        print(len(activated({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}, network)))
    except CannotBind as error:
        print(error)
"""


def test_a_socket_of_the_service_manager_for_other_machines_has_to_be_configured() -> None:
    done = subprocess.run([sys.executable, "-c", ADOPTING], capture_output=True, text=True, timeout=HANG_S, check=True)
    first, second, third = done.stdout.splitlines()
    assert "carctl http enable --lan" in first
    assert (second, third) == (first, "1")


def test_a_key_that_all_users_read_or_that_has_a_password_is_refused(folder: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    shown = folder / "key.pem"
    shown.write_bytes(key.read_bytes())
    shown.chmod(0o644)
    with pytest.raises(CertificateError, match="chmod 600"):
        serving(certificate, shown)
    with pytest.raises(CertificateError, match="cannot read"):
        serving(folder / "none.pem", key)
    (folder / "empty.pem").touch()
    with pytest.raises(CertificateError, match="is not a certificate"):
        fingerprint(folder / "empty.pem")
    with pytest.raises(CertificateError, match="not a certificate and its key"):
        serving(key, key)


def test_a_certificate_is_kept_while_it_has_the_names_and_its_key_is_private(folder: Path) -> None:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    assert making.ensure_certificate(certificate, key, ["one"], ["192.0.2.7"])
    first = fingerprint(certificate)
    assert not making.ensure_certificate(certificate, key, ["one"], [])
    assert making.ensure_certificate(certificate, key, ["two"], [])
    assert fingerprint(certificate) != first
    assert making.ensure_certificate(certificate, key, ["two", "192.0.2.8"], [])
    assert not making.ensure_certificate(certificate, key, ["192.0.2.8"], [])
    assert key.stat().st_mode & 0o777 == 0o600
    for spoil in (key.unlink, lambda: key.write_bytes(b"another"), lambda: key.chmod(0o644)):
        spoil()
        assert making.ensure_certificate(certificate, key, ["two"], [])
        serving(certificate, key)
    assert pinning(certificate).verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("one", None),
        ("192.0.2.7", None),
        ("localhost", None),
        ("two", "Hostname mismatch, certificate is not valid for 'two'"),
        ("192.0.2.8", "IP address mismatch, certificate is not valid for '192.0.2.8'"),
    ],
)
def test_clients_take_a_certificate_from_its_names_and_addresses_alone(
    folder: Path, host: str, why: str | None
) -> None:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    making.ensure_certificate(certificate, key, ["one"], ["192.0.2.7"])
    assert refusal(certificate, key, host) == why


class Authority:
    """Signs certificates: a root that signs itself, or below another authority."""

    def __init__(self, folder: Path, name: str, above: "Authority | None" = None, hosts: Sequence[str] = ()) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signer, now = above or self, datetime.now(UTC)
        made = x509.CertificateBuilder(signer.name, self.name, self.key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
        made = made.add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
        if hosts:
            made = made.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), critical=False
            )
        pem = serialization.Encoding.PEM
        self.certificate = made.sign(signer.key, hashes.SHA256()).public_bytes(pem)
        self.private = folder / f"{name}.key"
        plain = serialization.NoEncryption()
        self.private.write_bytes(self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        self.private.chmod(0o600)


def test_what_clients_need_follows_from_who_signed_a_certificate(
    folder: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Authority(folder, "root")
    below = Authority(folder, "below", root)
    leaf = Authority(folder, "leaf", below, ["card.example"])
    chain, whole, known = folder / "chain.pem", folder / "whole.pem", folder / "known.pem"
    chain.write_bytes(leaf.certificate + below.certificate)
    whole.write_bytes(chain.read_bytes() + root.certificate)
    known.write_bytes(root.certificate)
    assert trusted_by(*pair) is Trust.COPY
    assert trusted_by(chain, leaf.private) is Trust.AUTHORITY
    assert trusted_by(whole, leaf.private) is Trust.COPY
    monkeypatch.setenv("SSL_CERT_FILE", str(known))  # as if the system knew the root
    assert trusted_by(chain, leaf.private) is Trust.SYSTEM
    assert refusal(chain, leaf.private, "card.example") is None


def test_a_certificate_with_its_key_in_one_file_is_refused_because_others_get_a_copy(
    folder: Path, pair: tuple[Path, Path]
) -> None:
    both = folder / "both.pem"
    both.write_bytes(pair[1].read_bytes() + pair[0].read_bytes())
    check_pair(*pair)
    with pytest.raises(CertificateError, match="private key"):
        check_pair(both, pair[1])


def test_all_addresses_of_ipv6_have_those_of_ipv4_too_unless_another_address_has_them() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    ends = TlsPort("0.0.0.0", port), TlsPort("::", port)
    for addresses in (ends, ends[1:]):
        listening = bound(addresses)
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=HANG_S).close()
        for each in listening:
            each.close()


def test_no_version_before_tls_1_2_and_no_second_handshake_is_taken(pair: tuple[Path, Path]) -> None:
    context = serving(*pair)
    assert context.minimum_version == pinning(pair[0]).minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
