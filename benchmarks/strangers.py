"""Three users of one daemon, two of which mean harm in every way at once: what does the third one notice?

`sudo python -m benchmarks.strangers [--minutes M] [--alone M]` needs root, to be several users. It prints a line a
sample and a summary; exit code 1 where the third user's answers were wrong or late, or the daemon kept what it took.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import NamedTuple

import psutil

from benchmarks.soaking.attacks import ODD, SIGHT
from benchmarks.soaking.books import Json
from car_client import Client
from tools.hostile_models.templates import one_for_all
from tools.random_model import generate
from tools.random_models.projector import generate_projector

MIB = 1 << 20
SAMPLE_S = 5.0
QUIET_S = 60.0
HONEST, *HOSTILE = (61_001, 61_002, 61_003)
DAEMON_BYTES = 60 * MIB
ENGINE_BYTES = 8 * MIB
# The most that a request of a flood generates before it releases its sequence.
FLOOD_TOKENS = 400
_LOG_CHARACTERS = 4000


class Sample(NamedTuple):
    """The daemon's and the default model's engine's resources at a moment; sizes in bytes."""

    seconds: float
    daemon: int
    descriptors: int
    threads: int
    engine: int
    saved: int
    restarts: int
    pace: float  # tokens per second of one sequence


class Watcher:
    """Reads the status of a daemon."""

    def __init__(self, process: psutil.Process, socket: Path) -> None:
        self._process = process
        self._client = Client(str(socket))
        self._began = time.monotonic()

    def status(self) -> Json:
        """Return the status."""
        status: Json = self._client.call("daemon/status")
        return status

    def sample(self, status: Json) -> Sample:
        """Return a sample."""
        engine: Json = next(iter(status["models"][0]["engines"]), {})
        process = self._process
        return Sample(
            time.monotonic() - self._began,
            process.memory_info().rss,
            process.num_fds(),
            process.num_threads(),
            engine.get("rss_bytes", 0),
            engine.get("saved_bytes", 0),
            engine.get("restarts", 0),
            engine.get("decode_tokens_per_s", 0.0) / max(1.0, engine.get("batch_size", 0.0)),
        )

    def watch(self, seconds: float) -> list[Sample]:
        """Print a line a sample for so long; return the samples."""
        samples = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(SAMPLE_S)
            status = self.status()
            samples.append(sample := self.sample(status))
            restarts = {each["name"]: each["engines"][0]["restarts"] for each in status["models"] if each["engines"]}
            print(
                f"{sample.seconds:6.0f} s  daemon {sample.daemon // MIB} MiB, {sample.descriptors} descriptors, "
                f"{sample.threads} threads; engine {sample.engine // MIB} MiB, {sample.saved // MIB} of them saved; "
                f"queued {status['capacity']['queued']}, in use {status['capacity']['in_use']}; restarts {restarts}; "
                f"totals {status['totals']}",
                flush=True,
            )
        return samples

    def quiet(self) -> Sample:
        """Return a sample with all models loaded, once nothing is in flight and only this client is connected."""
        for model in (ODD, SIGHT):
            self._client.call("models/load", {"model": model})
        deadline = time.monotonic() + QUIET_S
        while True:
            status = self.status()
            if not status["totals"]["in_flight"] and len(status["connections"]) == 1:
                return self.sample(status)
            if time.monotonic() > deadline:
                sys.exit(f"not idle after {QUIET_S} s: {status['totals']}, {len(status['connections'])} connections")
            time.sleep(0.2)  # what was left a moment ago is on its way out


@contextmanager
def daemon() -> Iterator[tuple[psutil.Process, Path, int]]:
    """Run a daemon that lets the users in; yields its process, its socket and the number of the template's tricks."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        socket, config = folder / "card.sock", folder / "card.toml"
        template, tricks = one_for_all()
        (folder / "odd.jinja").write_text(template)
        generate(folder / "odd.gguf", "tiny", "q8_0")
        generate_projector(folder / "sight.mmproj")
        odd = (
            f'path = "{folder}/odd.gguf"\nchat_template = "{folder}/odd.jinja"\ncontext_tokens = 1024\nsequences = 4\n'
        )
        sight = (
            f'path = "{folder}/odd.gguf"\nprojector = "{folder}/sight.mmproj"\ncontext_tokens = 2048\nsequences = 2\n'
        )
        config.write_text(
            f"[daemon]\nallow_uids = {[HONEST, *HOSTILE]}\n[models.{ODD}]\n{odd}[models.{SIGHT}]\n{sight}",
            encoding="utf-8",
        )
        command = [sys.executable, "-c", "from car_daemon.main import main; main()"]
        command += ["--socket", str(socket), "--config", str(config)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            while not socket.exists():
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                time.sleep(0.05)  # nothing announces a socket that is not there yet
            yield psutil.Process(process.pid), socket, tricks
            process.terminate()
            assert process.wait(QUIET_S) == 0, "the daemon did not end as it should"
            assert "Traceback" not in (folder / "log").read_text(encoding="utf-8"), "a traceback in the log"
        except BaseException:
            print(f"the daemon's status is {process.poll()}, the end of its log:")
            print((folder / "log").read_text(encoding="utf-8")[-_LOG_CHARACTERS:], flush=True)
            raise
        finally:
            process.kill()


@contextmanager
def user(uid: int, socket: Path, seed: int, tricks: int) -> Iterator[list[Json]]:
    """Have a user play for the length of a block; what it prints is in the list then."""
    command = [sys.executable, "-m", "benchmarks.soaking.users", str(uid), str(socket), str(seed), str(tricks)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    printed: list[Json] = []
    try:
        yield printed
        out, _ = process.communicate("", timeout=QUIET_S)
        printed.append(json.loads(out))
    finally:
        process.kill()


def soak(process: psutil.Process, socket: Path, tricks: int, alone: float, minutes: float) -> list[str]:
    """Have the third user alone, then beside the others; return the faults."""
    watcher = Watcher(process, socket)
    with user(HONEST, socket, 0, tricks) as before:
        watcher.watch(alone * 60)
    base = watcher.quiet()
    print(f"base: {base}", flush=True)
    with (
        user(HONEST, socket, 0, tricks) as beside,
        user(HOSTILE[0], socket, 1, tricks) as first,
        user(HOSTILE[1], socket, 2, tricks) as second,
    ):
        samples = watcher.watch(minutes * 60)
    end = watcher.quiet()
    print(f"end:  {end}\ntricks: {first[0]} and {second[0]}")
    release = FLOOD_TOKENS / median([each.pace for each in samples if each.pace] or [FLOOD_TOKENS])
    return [*judged(before[0], beside[0], release), *kept(base, end, samples)]


def judged(before: Json, beside: Json, release: float) -> Iterator[str]:
    """Yield what is wrong with the third user's answers; a release in seconds, of a sequence that another user has."""
    p95 = {}
    for name, each in (("alone", before), ("beside", beside)):
        took = each["took"]
        p95[name] = quantiles(took, n=20)[18]
        print(f"{name}: {len(took)} answers, median {median(took):.3f}, p95 {p95[name]:.3f}, longest {max(took):.3f} s")
        print(f"the longest of them: {each['slowest']}")
        yield from (f"{name}: {wrong}" for wrong in each["wrong"])
    bound = 2 * p95["alone"] + release
    print(f"a release takes {release:.3f} s: p95 may be {bound:.3f} s")
    if p95["beside"] > bound:
        yield f"p95 was {p95['beside']:.3f} s, {bound:.3f} s are allowed"


def kept(base: Sample, end: Sample, samples: list[Sample]) -> Iterator[str]:
    """Yield what the daemon and its engine kept of what they took."""
    if end.daemon > DAEMON_BYTES:
        yield f"the daemon keeps {end.daemon // MIB} MiB, {DAEMON_BYTES // MIB} are allowed"
    if (end.descriptors, end.threads) != (base.descriptors, base.threads):
        yield f"descriptors and threads were {base.descriptors, base.threads}, and are {end.descriptors, end.threads}"
    # Another engine has other memory: those since the last restart, and of them the second half.
    same = [each for each in samples if each.restarts == samples[-1].restarts]
    third, fourth = same[len(same) // 2 : len(same) * 3 // 4], same[len(same) * 3 // 4 :]
    if third:
        grown, saved = (fmean(each(s) for s in fourth) - fmean(each(s) for s in third) for each in (_engine, _saved))
        print(
            f"engine: {grown / MIB:+.1f} MiB from the third to the fourth quarter, {saved / MIB:+.1f} MiB of them saved"
        )
        if grown - saved > ENGINE_BYTES:
            yield f"the engine grew by {(grown - saved) / MIB:.1f} MiB that no counter explains"


def _engine(sample: Sample) -> int:
    return sample.engine


def _saved(sample: Sample) -> int:
    return sample.saved


def main() -> None:
    """Soak, and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--alone", type=float, default=2.0)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can be several users: run it with sudo")
    with daemon() as (process, socket, tricks):
        faults = soak(process, socket, tricks, arguments.alone, arguments.minutes)
    print("\n".join(faults) or "no faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
