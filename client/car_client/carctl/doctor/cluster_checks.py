"""Checks of the cluster: what this machine needs to place engines, and what the daemon reports of the others."""

import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from car_client.carctl.cluster.command import connection, node_state
from car_client.carctl.cluster.head import (
    PATH_VARIABLE,
    Head,
    NotTaken,
    TokenError,
    Unreachable,
    check_head,
    check_token,
    token_path,
)
from car_client.carctl.cluster.joining import INSTALL, OLDEST, release
from car_client.carctl.doctor.environment_checks import CheckResult, Level
from car_client.results import Status

_AUTO = "auto"
_PACKAGES = ("ray", "cryptography")


def configured(path: Path) -> Mapping[str, Any] | None:
    """Return the table [cluster] of a configuration file; None without one, or where the file cannot be read."""
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
    """Check the packages, the token and the head of a configured cluster; the head by `check` where all is well."""
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
        head = Head.parse(address)
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
