"""Checks of what the daemon reports: its version, its models, their memory and devices, its cluster."""

import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from car_client.carctl.cluster.command import connection, node_state
from car_client.carctl.cluster.head import (
    PATH_VARIABLE,
    ClusterHead,
    NotTaken,
    TokenError,
    Unreachable,
    check_head,
    check_token,
    token_path,
)
from car_client.carctl.cluster.joining import INSTALL, OLDEST, release
from car_client.carctl.doctor.environment_checks import CheckResult, Level
from car_client.carctl.failure import explain
from car_client.carctl.hub.folder import file_advice
from car_client.carctl.models.page import device_text, experts_text, offers_text
from car_client.carctl.terminal.text import mib_text
from car_client.client import Client
from car_client.errors import CardError, RequestTimeout
from car_client.results import ModelStatus, Status
from car_protocol import PROTOCOL, __version__
from car_protocol.models import Estimate
from car_protocol.status import EngineStatus

_AUTO = "auto"
_PACKAGES = ("ray", "cryptography")


def configured(path: Path) -> Mapping[str, Any] | None:
    """Return the table [cluster] of a configuration file; None without a cluster, or if the file cannot be read."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("cluster")
    except (OSError, ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def check_machine(
    table: Mapping[str, Any],
    env: Mapping[str, str] = os.environ,
    installed: Callable[[str], str] = version,
    check: Callable[[str, Mapping[str, str]], None] = check_head,
) -> Iterator[CheckResult]:
    """Check the packages, the token and the head of a configured cluster; the head by `check` if all is well."""
    given, address = table.get("token"), str(table.get("address", ""))
    path = token_path(given if isinstance(given, str) else None, env)
    results = [_packages(installed), _token(path), *([] if address == _AUTO else _head(address, env))]
    yield from results
    if all(result.level != "fail" for result in results):
        yield _taken(address, dict(env) | {PATH_VARIABLE: str(path)}, check)


def check_status(status: Status, _: str | None) -> Iterator[CheckResult]:
    """Check the placer's connection, the nodes and the engines that have no place."""
    cluster = status.cluster
    if cluster is None:
        return
    level: Level = "ok" if cluster.reason is None else "fail"
    yield CheckResult(level, "cluster", f"{cluster.address}: {connection(cluster)}")
    for node in cluster.nodes:
        if not node.alive:
            yield CheckResult("warn", "node", f"{node.address} is down", "start it again: `carctl cluster join` there")
        elif node.avoided_s is not None:
            why = "" if node.reason is None else f": {node.reason}"
            yield CheckResult("warn", "node", f"{node.address} {node_state(node)}{why}")
    for model in status.models:
        if model.waiting_for is not None:
            facts = f"{model.name}: {model.up} of {model.replicas} engines: {model.waiting_for}"
            # Without a connection the model's lines say the same as the cluster's.
            advice = "add a node, or lower `needs` or `replicas` of the model" if cluster.reason is None else ""
            yield CheckResult("warn", "place", facts, advice)


def _packages(installed: Callable[[str], str]) -> CheckResult:
    try:
        found = {name: installed(name) for name in _PACKAGES}
    except PackageNotFoundError as error:
        return CheckResult("fail", "packages", f"the package {error.name} is not installed", INSTALL)
    if release(found["ray"]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return CheckResult("fail", "packages", f"Ray {found['ray']} is older than {oldest}", INSTALL)
    return CheckResult("ok", "packages", ", ".join(f"{name} {number}" for name, number in found.items()))


def _token(path: Path) -> CheckResult:
    try:
        check_token(path)
        return CheckResult("ok", "token", f"{path}, mode {stat.S_IMODE(path.stat().st_mode):03o}")
    except TokenError as error:
        return CheckResult("fail", "token", str(error))


def _taken(address: str, env: Mapping[str, str], check: Callable[[str, Mapping[str, str]], None]) -> CheckResult:
    try:
        check(address, env)
    except NotTaken as error:
        return CheckResult("fail", "head", str(error))
    return CheckResult("ok", "head", f"{address} takes this token, and no client without it")


def _head(address: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        head = ClusterHead.parse(address)
        head.check()
    except (ValueError, Unreachable) as error:
        yield CheckResult("fail", "head", str(error))
        return
    yield CheckResult("ok", "head", f"{head} answers")
    if not _is_loopback(head.host) and env.get("RAY_USE_TLS") != "1":
        facts = "engines' frames are encrypted, Ray's are not: each engine's key crosses the network in the clear"
        yield CheckResult("warn", "head", facts, "use a private network, a VPN, or RAY_USE_TLS=1 on every machine")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_MIB = 1024**2
_GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128")
_TIMEOUT_S = 5.0
_LOGS = "look at `carctl service logs`"
_STUCK = f"{_LOGS}; if it stays like this, restart the daemon"
_OPEN = (
    'load only model files that you trust: set sandbox = "strict", on a kernel with Landlock and seccomp (Linux 5.13)'
)
_NEARLY = 0.9
_RAISE = "raise engine_margin_bytes of [memory] and restart the daemon"
_FULL = "unload other models, or end other programs on the GPU, and load it again"
_BUILD = "build llama.cpp for the GPU (docs/howto/gpu.md)"


def check_daemon(socket: Path, gpus: Iterable[str] = _GPUS, timeout_s: float = _TIMEOUT_S) -> list[CheckResult]:
    """Read the daemon's status and check it."""
    try:
        with Client(socket, timeout=timeout_s, connect_timeout=0) as client:
            status = client.status()
            readable = [model for model in status.models if model.state != "failed" and model.size_bytes is not None]
            contexts = [_context(client, model) for model in readable]
    except RequestTimeout:
        return [CheckResult("fail", "answer", f"no answer in {timeout_s:g} s", _STUCK)]
    except CardError as error:
        return [CheckResult("fail", "answer", explain(error), _LOGS)]
    gpu = next((path for path in gpus if Path(path).exists()), None)
    return [*(result for check in _CHECKS for result in check(status, gpu)), *contexts]


def _context(client: Client, model: ModelStatus) -> CheckResult:
    """Return the sequences of a loaded model, and the numbers and lengths that fit, by the header of its file."""
    try:
        details = client.show_model(model.name)
    except CardError as error:
        return CheckResult("warn", "context", f"{model.name}: {explain(error)}", _LOGS)
    if details.why is not None:
        return CheckResult("warn", "context", f"{model.name}: {details.why}", file_advice(model, details.why))
    facts = f"{model.name}: {_sequences(model)}"
    if details.file is not None:
        facts += f", trained for {details.file.context_length:,}"
    if details.estimate is not None:
        facts += _offers(details.estimate, loaded=model.state == "ready")
    return CheckResult("ok", "context", facts)


def _sequences(model: ModelStatus) -> str:
    if model.state != "ready":
        return model.state
    sequences = sum(engine.sequences for engine in model.engines)
    return f"{sequences} × {model.context_tokens or 0:,} tokens"


def _offers(estimate: Estimate, *, loaded: bool) -> str:
    """Return the numbers and lengths that fit; a loaded model's only one stands before it already."""
    if len(estimate.offers) > loaded:
        return f"; fits {offers_text(estimate)}"
    return "; not one sequence fits now" if estimate.sequences == 0 and not loaded else ""


def _version(status: Status, _: str | None) -> Iterator[CheckResult]:
    if status.protocol != PROTOCOL:
        facts = f"the daemon speaks protocol {status.protocol}, carctl {PROTOCOL}"
        yield CheckResult("fail", "version", facts, "upgrade the older one")
    elif status.version != __version__:
        facts = f"the daemon is {status.version}, carctl {__version__}"
        yield CheckResult("warn", "version", facts, "restart the daemon after an upgrade")
    else:
        yield CheckResult("ok", "version", f"{__version__} on both sides")


def _models(status: Status, _: str | None) -> Iterator[CheckResult]:
    for model in status.models:
        state = f"{model.name}, {model.state}"
        if model.state == "failed":
            reason = model.reason if model.reason is not None else "unknown"
            yield CheckResult("fail", "model", f"{state}: {reason}", file_advice(model, reason))
        elif model.size_bytes is None:
            level: Level = "fail" if model.default else "warn"
            yield CheckResult(level, "model", f"{state}: no file {model.path}", file_advice(model))
        else:
            yield CheckResult("ok", "model", f"{state}: {model.path}, {mib_text(model.size_bytes)}")


def _memory(status: Status, _: str | None) -> Iterator[CheckResult]:
    memory, inputs = status.memory, status.capacity.inputs or {}
    free = f"{mib_text(memory.available)} of {mib_text(memory.total)} available"
    if memory.pressure != "none":
        yield CheckResult("warn", "memory", f"{free}, pressure {memory.pressure}", "end other programs")
        return
    for model in status.models:
        if model.state != "ready" and (model.size_bytes or 0) > memory.available:
            facts = f"{free}; {model.name} takes {mib_text(model.size_bytes or 0)}"
            yield CheckResult("warn", "memory", facts, "it does not fit now: end other programs or unload models")
    kv_bytes = inputs.get("kv_bytes_per_sequence")
    sequence = f", {kv_bytes / _MIB:.0f} MiB a sequence of {status.capacity.model}" if kv_bytes else ""
    yield CheckResult("ok", "memory", free + sequence)


def _device(status: Status, gpu: str | None) -> Iterator[CheckResult]:
    for model in status.models:
        if model.state != "ready":
            continue
        if model.device == "cpu" and gpu is not None:
            full = any(engine.devices for engine in model.engines)
            facts = f"{model.name} on the CPU beside {gpu}{_on_devices(model)}"
            yield CheckResult("warn", "device", facts, _FULL if full else _BUILD)
        elif short := [each for engine in model.engines for each in engine.devices if each.pressure != "none"]:
            levels = ", ".join(f"pressure {each.pressure} on {each.name}" for each in short)
            facts = f"{model.name} on {model.device}{_on_devices(model)}; {levels}"
            yield CheckResult("warn", "device", facts, "end other programs on it, or unload models")
        else:
            yield CheckResult("ok", "device", f"{model.name} on {model.device}{_on_devices(model)}")


def _on_devices(model: ModelStatus) -> str:
    """Return what a model has on each GPU: what was planned, and what the load took; and its experts elsewhere."""
    return "".join(map(_placed, model.engines))


def _placed(engine: EngineStatus) -> str:
    return "".join(f"; {device_text(device)}" for device in engine.devices) + experts_text(engine.host_experts)


def _sandbox(status: Status, _: str | None) -> Iterator[CheckResult]:
    for model in status.models:
        for engine in model.engines if model.state == "ready" else ():
            if "seccomp" in engine.sandbox and any(each.startswith("landlock") for each in engine.sandbox):
                yield CheckResult("ok", "sandbox", f"{model.name}: {', '.join(engine.sandbox)}")
            else:
                facts = f"{model.name}: {', '.join(engine.sandbox) or 'none'}"
                yield CheckResult("warn", "sandbox", facts, _OPEN)


def _limits(status: Status, _: str | None) -> Iterator[CheckResult]:
    for model in status.models:
        for memory in [engine.memory for engine in model.engines if engine.memory is not None]:
            uses = {
                "private": (memory.private_bytes, memory.private_limit_bytes),
                "virtual": (memory.virtual_bytes, memory.virtual_limit_bytes),
            }
            facts = [f"{mib_text(used)} of {mib_text(limit)} of {kind} memory" for kind, (used, limit) in uses.items()]
            full = any(used > _NEARLY * limit for used, limit in uses.values())
            level: Level = "warn" if full else "ok"
            yield CheckResult(level, "limits", f"{model.name}: {', '.join(facts)}", _RAISE if full else "")


_CHECKS: tuple[Callable[[Status, str | None], Iterator[CheckResult]], ...] = (
    _version,
    _models,
    _memory,
    _device,
    _sandbox,
    _limits,
    check_status,
)
