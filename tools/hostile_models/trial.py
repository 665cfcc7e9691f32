"""A daemon that is given every file of the folder, while another of its models serves a stream."""

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from car_client import Client, RequestError

_START_S = 60.0
DEADLINE_S = 30.0
# An answer may come so much after its deadline: busy cores delay the client that measures it.
_LATE_S = 5.0
_WORKERS = 3
_QUESTION = [{"role": "user", "content": "Hi"}]


@dataclass
class Report:
    """How the requests of all files ended, and what another model's stream noticed; times in seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    gap_s: float = 0.0  # the worst of the stream
    chunks: int = 0
    deaths: dict[str, int] = field(default_factory=dict)  # of engines, by model
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        worst = Counter(self.deaths.values())
        return (
            f"{sum(self.outcomes.values())} files: {dict(self.outcomes.most_common())}\n"
            f"slowest answer {self.slowest_s:.1f} s; engines that died, by file: {dict(sorted(worst.items()))}\n"
            f"another model's stream: {self.chunks} chunks, worst gap {self.gap_s:.2f} s\n"
            + "\n".join(self.faults or ["no faults"])
        )


def configuration(folder: Path) -> str:
    """Return a configuration with a model for each file."""
    files = sorted(folder.glob("*.gguf"))
    return "".join(f'[models.{each.stem}]\npath = "{each}"\ncontext_tokens = 256\nsequences = 1\n' for each in files)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Path, "subprocess.Popen[bytes]", Path]]:
    """Run a daemon of the folder's models; yields its socket, its process and its log."""
    socket, config, log = folder / "card.sock", folder / "card.toml", folder / "log"
    config.write_text(configuration(folder), encoding="utf-8")
    command = [sys.executable, "-c", "from car_daemon.main import main; main()"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--socket", str(socket), "--config", str(config)], stdout=file, stderr=file
        )
    try:
        while not socket.exists():
            assert process.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.05)  # nothing announces a socket that is not there yet
        yield socket, process, log
    finally:
        process.terminate()
        process.wait(_START_S)


class Bystander:
    """A stream of the default model without end, and its worst gap."""

    def __init__(self, socket: Path, report: Report) -> None:
        self._socket = socket
        self._report = report
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(str(self._socket)) as client:
            client.infer("Hi", max_tokens=1)
            while not self._over.is_set():
                self._listen(client)

    def _listen(self, client: Client) -> None:
        try:
            with client.infer_stream("and so on", ignore_eos=True, max_tokens=3000, seed=1) as stream:
                last = time.monotonic()
                for _ in stream:
                    now = time.monotonic()
                    self._report.gap_s = max(self._report.gap_s, now - last)
                    self._report.chunks += 1
                    last = now
                    if self._over.is_set():
                        return
        except RequestError as error:
            self._report.faults.append(f"the stream ended: {error.reason}")


def attempt(socket: Path, model: str, report: Report) -> None:
    """Have a model answer within a deadline, and unload it."""
    with Client(str(socket), max_retries=0) as client:
        begun = time.monotonic()
        try:
            client.infer(messages=_QUESTION, model=model, max_tokens=4, timeout_ms=int(DEADLINE_S * 1000))
            outcome = "answered"
        except RequestError as error:
            outcome = error.reason
        took = time.monotonic() - begun
        client.unload_model(model)
    report.outcomes[outcome] += 1
    report.slowest_s = max(report.slowest_s, took)
    if outcome == "internal_error" or took > DEADLINE_S + _LATE_S:
        report.faults.append(f"{model}: {outcome} after {took:.1f} s")


def run(folder: Path) -> Report:
    """Try every file of a folder; return what happened."""
    report = Report()
    models = sorted(each.stem for each in folder.glob("*.gguf"))
    with serving(folder) as (socket, process, log):
        bystander = Bystander(socket, report)
        bystander.start()
        try:
            with ThreadPoolExecutor(_WORKERS) as workers:
                list(workers.map(lambda model: attempt(socket, model, report), models))
        finally:
            bystander.stop()
        if process.poll() is not None:
            report.faults.append(f"the daemon ended with {process.returncode}")
        with Client(str(socket)) as client:
            if client.infer("Hi", max_tokens=1).usage.completion_tokens != 1:
                report.faults.append("the daemon does not answer")
    text = log.read_text(encoding="utf-8")
    report.deaths = dict(Counter(re.findall(r"engine\.ended .*?model=(\S+)", text)))
    report.faults += [f"{model}: {count} engines died" for model, count in report.deaths.items() if count > 2]
    report.faults += ["a traceback in the log"] if "Traceback" in text else []
    return report
