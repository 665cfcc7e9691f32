"""A seat on a node, without Ray: it checks and fetches the model's files, listens, and ends by itself."""

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from car_base import guide
from car_base.host.files import content_of
from car_base.ipc.placing import BUILT_IN, FromSeat, HostMemory, Place, Placed, Unplaced, Waiting, decode_from_seat
from car_daemon.cluster.remote import RemoteEngine
from tests.pace import HANG_S

pytest.importorskip("cryptography", reason="pairs need the package cryptography")

from car_placer.relay import new_pair
from car_placer.seat import PULL, Seat, SeatOrder, Where
from tests.client.carctl.hub.fake_hub import FakeHub
from tests.daemon.cluster.test_relay import FakeEngine

WHERE = Where("n", "127.0.0.1", "1", "s")
FILE = "owner/repo/m.gguf"


class OpenSeat:
    """A seat, its order, and the status with which it ends its process."""

    def __init__(self, place: Place, *, pull: Sequence[str] = (), open_s: float = 60.0) -> None:
        self.engine = FakeEngine()
        self.ended = threading.Event()
        self.statuses: list[int] = []
        self.seat = Seat(self._end, open_s=open_s, pull=pull, spawn=self.engine.spawn)
        self.order = SeatOrder(place, WHERE, new_pair())

    def _end(self, status: int) -> None:
        self.statuses.append(status)
        self.ended.set()

    def open(self) -> None:
        self.seat.open(msgspec.msgpack.encode(self.order))

    def outcome(self) -> FromSeat:
        report: FromSeat = decode_from_seat(self.seat.outcome(wait_s=10.0))
        return report


def place(path: str, **further: object) -> Place:
    return msgspec.convert({"type": "Place", "number": 7, "model": "m", "path": path} | further, Place)


def outcome_of(one: Place, *, pull: Sequence[str] = ()) -> list[FromSeat]:
    """Open a seat; return its reports up to the one that ends the opening."""
    seat = OpenSeat(one, pull=pull)
    seat.open()
    reports = [seat.outcome()]
    while isinstance(reports[-1], Waiting):
        reports.append(seat.outcome())
    return reports


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF and weights")
    return path


async def test_a_seat_serves_the_daemon_once_and_ends(model: Path) -> None:
    seat = OpenSeat(place(str(model), content=content_of([model])))
    seat.open()
    report = await asyncio.to_thread(seat.outcome)
    assert isinstance(report, Placed)
    assert (report.number, report.node, report.address, report.path) == (7, "n", "127.0.0.1", str(model))
    assert report.content == content_of([model])
    remote = RemoteEngine(report, asyncio.get_running_loop().time, lambda _: None)
    memory: asyncio.Queue[HostMemory] = asyncio.Queue()
    await remote.connect(lambda _: None, memory.put_nowait)
    await memory.get()
    remote.kill()
    await remote.wait()
    assert await asyncio.to_thread(seat.ended.wait, 10.0)
    assert seat.statuses == [0]


def test_the_built_in_model_is_the_node_s_own() -> None:
    (report,) = outcome_of(place(BUILT_IN))
    assert isinstance(report, Placed)
    assert report.path == str(guide.PATH)


@pytest.mark.parametrize("beside", [[], ["/none/projector.gguf"]])
def test_a_file_that_is_missing_is_named_with_the_node(model: Path, beside: list[str]) -> None:
    path = str(model) if beside else "/none/m.gguf"
    missing = beside[0] if beside else path
    why = f"127.0.0.1: the model file is not there: {missing}: No such file or directory; copy it to that path"
    assert outcome_of(place(path, beside=beside)) == [Unplaced(number=7, why=why, node="n")]


def test_another_file_than_that_of_the_other_engines_is_refused(model: Path) -> None:
    why = f"127.0.0.1: {model} is not the file that the daemon or its other engines have: copy it there"
    assert outcome_of(place(str(model), content="other")) == [Unplaced(number=7, why=why, node="n")]


def puller(folder: Path, text: str) -> list[str]:
    """Return a command that stands in for carctl's download."""
    script = folder / "pull.py"
    script.write_text(text)
    return [sys.executable, str(script)]


WRITES = """
import os, pathlib, sys
file = pathlib.Path(os.environ["XDG_DATA_HOME"]) / "car" / "models" / sys.argv[1].removeprefix("hf:")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_bytes(b"GGUF and weights")
with (file.parent / "pulls").open("a") as pulls:
    pulls.write("x")
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "car" / "models" / "owner" / "repo"


def test_a_file_of_the_hub_is_downloaded_once_for_all_seats_of_a_node(models: Path, model: Path) -> None:
    wanted = place("/elsewhere/m.gguf", hf=FILE, content=content_of([model]))
    seats = [OpenSeat(wanted, pull=puller(model.parent, WRITES)) for _ in range(3)]
    for seat in seats:
        seat.open()
    reports = [[seat.outcome() for _ in range(2)] for seat in seats]
    for seat, own in zip(seats, reports, strict=True):
        assert own[0] == Waiting(7, f"127.0.0.1 downloads hf:{FILE}")
        while isinstance(own[-1], Waiting):
            own.append(seat.outcome())
        assert isinstance(own[-1], Placed)
        assert own[-1].path == str(models / "m.gguf")
    assert (models / "pulls").read_text() == "x"


def test_the_command_that_downloads_is_carctl_s(models: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub()
    hub.files[FILE] = model.read_bytes()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with hub.serving():
        placed = outcome_of(place("/m.gguf", hf=FILE, content=content_of([model])), pull=PULL)[-1]
    assert isinstance(placed, Placed)
    assert (models / "m.gguf").read_bytes() == model.read_bytes()


def test_a_file_of_the_hub_that_changed_is_downloaded_again(models: Path, model: Path) -> None:
    models.mkdir(parents=True)
    (models / "m.gguf").write_bytes(b"an older one")
    pull = puller(model.parent, WRITES)
    report = outcome_of(place("/m.gguf", hf=FILE, content=content_of([model])), pull=pull)[-1]
    assert isinstance(report, Placed)
    assert (models / "m.gguf").read_bytes() == b"GGUF and weights"


def test_a_download_that_fails_is_refused_with_its_last_line(models: Path, tmp_path: Path) -> None:
    pull = puller(tmp_path, 'import sys\nsys.exit("carctl: HF_TOKEN may not read it")\n')
    report = outcome_of(place("/m.gguf", hf=FILE), pull=pull)[-1]
    why = f"127.0.0.1: cannot download hf:{FILE}: carctl: HF_TOKEN may not read it"
    assert report == Unplaced(number=7, why=why, node="n")


def test_a_node_that_cannot_write_downloads_refuses_with_the_folder(models: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file in place of the folder")
    (report,) = outcome_of(place("/m.gguf", hf=FILE))
    assert isinstance(report, Unplaced)
    folder = models.parents[1]
    assert f"127.0.0.1: cannot download hf:{FILE} into {folder}: Not a directory: make room there" in report.why


def test_a_seat_that_fails_reports_it_and_ends(model: Path) -> None:
    opened = OpenSeat(place(str(model)), open_s=0.0)
    opened.order = SeatOrder(opened.order.place, WHERE, b"no key")
    opened.open()
    assert isinstance(opened.outcome(), Placed)
    failed = opened.outcome()
    assert isinstance(failed, Unplaced)
    assert failed.why.startswith("127.0.0.1: its seat failed: SSLError")
    assert opened.ended.wait(HANG_S)


@pytest.mark.parametrize("act", [lambda _: None, lambda seat: seat.open()], ids=["never opened", "refused"])
def test_a_seat_that_is_of_no_use_ends_by_itself(act: Callable[[OpenSeat], None]) -> None:
    seat = OpenSeat(place("/none/m.gguf"), open_s=0.05)
    act(seat)
    assert seat.ended.wait(HANG_S)
    assert seat.statuses[0] == 0


def test_nothing_to_report_is_an_empty_frame() -> None:
    assert OpenSeat(place("/m")).seat.outcome(wait_s=0.0) == b""
