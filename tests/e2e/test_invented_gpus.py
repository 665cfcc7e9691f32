"""A daemon on invented GPUs: found, planned, short of memory, shared by two models, and reported."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_base.capacity.placement import reserve_of
from car_base.host.devices import Device
from car_base.ipc.model_sizes import ModelSizes
from car_daemon.models.memory_estimate import sizes_of
from car_daemon.models.model_files import check_model
from car_daemon.models.settings import ModelSettings
from tests.e2e.invented_gpus import FOLDER, Gpus
from tests.e2e.pool import CONTEXT, long, short, until, write_models
from tests.e2e.support import BIN, PATIENCE_S, ROOT, Daemon, Json, RawClient
from tools.random_model import generate
from tools.random_models.experts import generate_experts

pytestmark = pytest.mark.slow
GIB = 1 << 30
# What entries of one file state, by their names.
STATED = {
    "layers": "gpu_layers = 2",
    "first": 'device = "gpu0"',
    "second": 'device = "gpu1"\nkv_type = "q4_0"',
    "twice": 'device = "gpu0"\nreplicas = 2',
    "missing": 'device = "gpu2"',
}


@pytest.fixture
def gpus(folder: Path) -> Gpus:
    """One GPU of 1 GiB."""
    invented = Gpus(folder)
    invented.add(CUDA0=GIB)
    return invented


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three models whose entries name no device, and one file in entries that do."""
    files = tmp_path_factory.mktemp("models")
    config = write_models(files, "abc")
    generate(files / "long.gguf", "long", "q8_0")
    same = f'path = "{files}/long.gguf"\ncontext_tokens = 4096\nsequences = 1\n'
    stated = "".join(f"[models.{name}]\n{same}{text}\n" for name, text in STATED.items())
    generate_experts(files / "experts.gguf")
    stated += f'[models.experts]\npath = "{files}/experts.gguf"\ncontext_tokens = {CONTEXT}\nsequences = 1\n'
    return f'{config.read_text()}{stated}[daemon]\nsandbox = "off"\n[pressure]\ncalm_s = 0.1\n'


@pytest.fixture
def daemon(gpus: Gpus, configuration: str) -> Iterator[Daemon]:
    """A daemon of these models."""
    folder = gpus.folder
    config = folder / "card.toml"
    config.write_text(configuration)
    environment = {FOLDER: str(folder), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder)}
    program = (sys.executable, "-m", "tests.e2e.invented_gpus")
    served = Daemon(folder, "--config", str(config), program=program, **environment)
    try:
        yield served.ready()
        assert served.stop() == 0
    finally:
        served.kill()


def model(client: RawClient, name: str) -> Json:
    """Return a model's part of the status."""
    found: Json = next(each for each in client.result("daemon/status")["models"] if each["name"] == name)
    return found


def device(client: RawClient, name: str) -> Json:
    """Return the one device of a model's one engine."""
    ((found,),) = [each["devices"] for each in model(client, name)["engines"]]
    one: Json = found
    return one


def uses_of(client: RawClient, name: str, engines: int) -> list[Json]:
    """Load a model; return what each device holds of it once so many engines are up."""
    deadline = time.monotonic() + PATIENCE_S
    while len(up := [each for each in model(client, name)["engines"] if each["devices"]]) < engines:
        assert time.monotonic() < deadline
        client.result("infer", short(name))
    return [use for engine in up for use in engine["devices"]]


def doctor(daemon: Daemon) -> str:
    """Return the lines of `carctl doctor`."""
    done = subprocess.run(
        [BIN / "carctl", "--socket", str(daemon.path), "doctor"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done.stdout


def experts_sizes(configuration: str) -> ModelSizes:
    """Return the sizes of the mixture of experts by its header."""
    (path,) = [Path(line.split('"')[1]) for line in configuration.splitlines() if "experts.gguf" in line]
    return sizes_of(check_model(path), ModelSettings(path, context_tokens=CONTEXT))


def capacity_of(client: RawClient, capacity: int) -> Json:
    """Return the first notified capacity object with this capacity."""
    while (message := client.receive()).get("method") != "inference/capacity_changed" or (
        message["params"]["capacity"] != capacity
    ):
        pass
    found: Json = message["params"]
    return found


def test_models_without_a_stated_device_go_to_a_gpu_and_count_each_other_there(daemon: Daemon) -> None:
    with daemon.connect() as client:
        first = device(client, "a")
        assert model(client, "a")["device"] == "gpu"
        assert (first["name"], first["total_bytes"]) == ("CUDA0", GIB)
        assert 0 < first["planned_bytes"] == first["taken_bytes"]
        assert first["free_bytes"] == GIB - first["taken_bytes"]
        assert client.result("models/show", {"model": "a"})["devices"] == [first]
        client.result("infer", short("b"))
        second = device(client, "b")
        assert second["free_bytes"] == GIB - first["taken_bytes"] - second["taken_bytes"]
        assert second["planned_bytes"] <= first["free_bytes"]
        assert client.reason("infer", short("b", device="cpu")) == "model_unavailable"
        assert client.result("infer", short("b", device="gpu"))["finish_reason"] == "length"
    assert daemon.log.read_text().count("devices.found") == 1
    (line,) = [each for each in doctor(daemon).splitlines() if "a on gpu" in each]
    mib = first["taken_bytes"] >> 20
    assert f"CUDA0: 3 layers, {mib} MiB planned, {mib} MiB taken" in line
    assert "of 1024 MiB free" in line


def test_stated_layers_devices_replicas_and_kv_types_win_over_the_plan(daemon: Daemon, gpus: Gpus) -> None:
    gpus.add(CUDA0=GIB, CUDA1=GIB // 2)
    with daemon.connect() as client:
        uses = {}
        for name, engines in {"layers": 1, "second": 1, "twice": 2}.items():
            uses[name] = uses_of(client, name, engines)
        on = {
            name: [(each["name"], each["layers"]) for each in found if each["layers"]] for name, found in uses.items()
        }
        assert on == {"layers": [("CUDA0", 2)], "second": [("CUDA1", 3)], "twice": [("CUDA0", 3)] * 2}
        # One replica loads after the other, or each would count what the other takes.
        assert [each["taken_bytes"] - each["planned_bytes"] for each in uses["twice"]] == [0, 0]
        # Two layers of one head of 32 keys and 32 values: 16 bits a number against 4.5.
        smaller = uses["twice"][0]["planned_bytes"] - uses["second"][0]["planned_bytes"]
        assert smaller == 4096 * 2 * 64 * (16 - 4.5) / 8
        (engine,) = model(client, "second")["engines"]
        assert gpus.calls(engine["pid"]) == {
            "slots": [3],
            "host_experts": [],
            "kv_type": "q4_0",
            "sequences": 1,
            "context_tokens": 4096,
        }
        assert client.reason("infer", short("missing")) == "model_unavailable"
        (why,) = [each["reason"] for each in client.result("models/list")["models"] if each["name"] == "missing"]
        assert why == "gpu2: llama.cpp finds 2 GPUs, gpu0 (CUDA0), gpu1 (CUDA1): set device to one of them, or to gpu"


def test_layers_are_split_over_unequal_gpus_and_experts_go_to_the_host_where_one_gpu_is_left(
    daemon: Daemon, gpus: Gpus, configuration: str
) -> None:
    sizes = experts_sizes(configuration)
    layer = sizes.slots[0].weights + sizes.slots[0].cells.of(CONTEXT)
    least = reserve_of(Device("any", 0, 0)) + sizes.buffers + sizes.mask(CONTEXT)
    gpus.add(CUDA0=least + 7 * layer // 2, CUDA1=least + 3 * layer // 2)
    with daemon.connect() as client:
        client.result("models/unload", {"model": "a"})
        written = [client.result("infer", short("experts", max_tokens=8))["text"]]
        (engine,) = model(client, "experts")["engines"]
        assert [each["layers"] for each in engine["devices"]] == [3, 2]
        assert engine["host_experts"] == 0
        assert all(each["planned_bytes"] == each["taken_bytes"] for each in engine["devices"])
        assert client.result("models/show", {"model": "experts"})["devices"] == engine["devices"]
        (line,) = [each for each in doctor(daemon).splitlines() if "experts on gpu" in each]
        assert "CUDA0: 3 layers" in line
        assert "CUDA1: 2 layers" in line
        client.result("models/unload", {"model": "experts"})
        until(client, "experts", "unloaded")
        gpus.add(CUDA0=least + 4 * layer + sizes.slots[-1].weights - sizes.slots[0].experts)
        written.append(client.result("infer", short("experts", max_tokens=8))["text"])
        (engine,) = model(client, "experts")["engines"]
        assert (engine["devices"][0]["layers"], engine["host_experts"]) == (5, 1)
        assert gpus.calls(engine["pid"])["host_experts"] == [0]
        assert client.result("models/show", {"model": "experts"})["host_experts"] == 1
    # llama.cpp kept these experts in other buffers, and computed the same.
    assert written[0] == written[1]
    assert "layers.on_host" in daemon.log.read_text()


def test_an_integrated_gpu_is_used_where_there_is_no_other(daemon: Daemon, gpus: Gpus) -> None:
    with daemon.connect() as client:
        gpus.add(iGPU=GIB, CUDA0=GIB)
        client.result("infer", short("b"))
        assert device(client, "b")["name"] == "CUDA0"
        gpus.add(iGPU=GIB)
        client.result("infer", short("c"))
        found = device(client, "c")
        assert (found["name"], found["layers"]) == ("iGPU", 3)
        assert 0 < found["planned_bytes"] == found["taken_bytes"]


def test_a_load_that_runs_out_of_memory_once_is_served_and_twice_fails_with_a_reason(
    daemon: Daemon, gpus: Gpus
) -> None:
    with daemon.connect() as client:
        gpus.fail(1)
        client.result("infer", short("b"))
        files = [json.loads(file.read_text()) for file in gpus.folder.glob("car/curves/*.json")]
        kept = [value for file in files for value in file.values()]
        ((situation,),) = [each["situations"] for each in kept if "situations" in each]
        assert (situation["part"], situation["failed"]) == (0.8, 1.0)
        client.result("models/unload", {"model": "b"})
        until(client, "b", "unloaded")
        gpus.fail(2)
        assert client.reason("models/load", {"model": "b"}) == "model_unavailable"
        assert model(client, "b")["state"] == "failed"
        assert client.result("infer", short("a"))["finish_reason"] == "length"
    assert daemon.log.read_text().count("load.retried") == 2


def test_a_load_whose_sequences_run_out_of_memory_is_tried_once_with_less_too(daemon: Daemon, gpus: Gpus) -> None:
    with daemon.connect() as client:
        gpus.fail(1, what="contexts")
        assert client.result("infer", short("b"))["finish_reason"] == "length"
        assert device(client, "b")["planned_bytes"] == device(client, "b")["taken_bytes"] > 0
        gpus.fail(2, what="contexts")
        assert client.reason("models/load", {"model": "c"}) == "model_unavailable"
        (reason,) = [each["reason"] for each in client.result("models/list")["models"] if each["name"] == "c"]
        assert reason.startswith("the context could not be created; tried with 3 and 3 layers on GPUs: set fewer")
    assert daemon.log.read_text().count("load.retried") == 2


def test_a_model_without_a_stated_device_for_which_a_gpu_has_no_room_is_on_the_cpu(daemon: Daemon, gpus: Gpus) -> None:
    with daemon.connect() as client:
        gpus.take(os.getpid(), CUDA0=GIB - (64 << 20))
        assert client.result("infer", short("b"))["finish_reason"] == "length"
        assert client.result("infer", short("b", device="cpu"))["finish_reason"] == "length"
        assert (model(client, "b")["device"], device(client, "b")["layers"]) == ("cpu", 0)
        assert client.reason("infer", short("b", device="gpu")) == "model_unavailable"
        assert model(client, "a")["device"] == "gpu"
        # An entry that names the GPU gets no answers from the CPU in its place.
        assert client.reason("models/load", {"model": "first"}) == "model_unavailable"
        (why,) = [each["reason"] for each in client.result("models/list")["models"] if each["name"] == "first"]
        assert "(0 on CUDA0)" in why
        assert why in doctor(daemon)


def test_a_model_that_a_gpu_has_no_room_for_drives_the_least_recently_used_idle_one_out(
    daemon: Daemon, gpus: Gpus
) -> None:
    with daemon.connect() as client, daemon.connect() as watching:
        client.result("infer", short("b"))
        # A third of these models finds no room beside two of them and the reserve of 256 MiB.
        gpus.add(CUDA0=(256 + 4 << 20) + device(client, "a")["taken_bytes"] + device(client, "b")["taken_bytes"])
        assert client.result("infer", short("c"))["finish_reason"] == "length"
        until(watching, "b", "unloaded")
        assert device(client, "c")["layers"] == device(client, "a")["layers"] > 0
        assert model(client, "a")["state"] == "ready"
        client.result("infer", short("b"))
        until(watching, "c", "unloaded")
    evicted = [line for line in daemon.log.read_text().splitlines() if "model.evicted" in line]
    assert [line.split()[-1] for line in evicted] == ["model=b", "model=c"]
    assert not any("device_bytes=0" in line for line in evicted)


def test_a_second_model_goes_to_the_gpu_with_more_room_and_stays_there_when_the_first_is_full(
    daemon: Daemon, gpus: Gpus
) -> None:
    gpus.add(CUDA0=GIB, CUDA1=GIB)
    with daemon.connect() as client:
        client.result("infer", short("b"))
        assert (device(client, "a")["name"], device(client, "b")["name"]) == ("CUDA0", "CUDA1")
        assert device(client, "b")["taken_bytes"] == device(client, "b")["planned_bytes"]
        gpus.take(os.getpid(), CUDA0=GIB)
        client.result("infer", short("c"))
        assert device(client, "c")["name"] == "CUDA1"
        assert model(client, "b")["state"] == "ready"


def test_an_idle_model_leaves_a_gpu_that_other_programs_fill(daemon: Daemon, gpus: Gpus) -> None:
    with daemon.connect() as client, daemon.connect() as watching:
        client.result("infer", short("b"))
        gpus.take(os.getpid(), CUDA0=GIB)
        until(watching, "b", "unloaded")
        # The default model stays, and its engine's next heartbeat reports that nothing is free.
        deadline = time.monotonic() + PATIENCE_S
        while device(client, "a")["free_bytes"]:
            assert time.monotonic() < deadline
            client.result("infer", short("a"))
    assert "device.pressure" in daemon.log.read_text()


def test_a_gpu_that_other_programs_fill_runs_fewer_requests_of_its_models_until_they_end(
    daemon: Daemon, gpus: Gpus
) -> None:
    with daemon.connect() as client, daemon.connect() as watching:
        assert watching.result("inference/capacity", {"model": "a", "subscribe": True})["capacity"] == 2
        running = [client.send("infer", long("a")) for _ in range(2)]
        gpus.take(os.getpid(), CUDA0=GIB)
        pressed = capacity_of(watching, 1)
        assert (pressed["pressure"], pressed["declared"]) == ("critical", 2)
        assert device(client, "a")["pressure"] == "critical"
        assert client.result("daemon/status")["memory"]["pressure"] == "none"
        assert "pressure critical on CUDA0" in doctor(daemon)
        assert all("result" in client.response(each) for each in running)
        both = [client.send("infer", long("a")) for _ in range(2)]
        now = client.result("inference/capacity", {"model": "a"})
        assert now["in_use"] <= 1
        assert all("result" in client.response(each) for each in both)
        gpus.take(os.getpid(), CUDA0=0)
        assert capacity_of(watching, 2)["pressure"] == "none"


def test_a_killed_engine_frees_its_device_and_is_placed_again(daemon: Daemon) -> None:
    with daemon.connect() as client:
        before = device(client, "a")
        request = client.send("infer", long("a"))
        daemon.engine().kill()
        assert "result" in client.response(request)
        assert device(client, "a")["taken_bytes"] == before["taken_bytes"]
