"""`carctl doctor`: what is wrong between this user and an answer, and how to mend it."""

from argparse import SUPPRESS, ArgumentParser, Namespace

from car_client.carctl import served, setting
from car_client.carctl.finding import Finding
from car_client.carctl.steps import Steps
from car_client.carctl.terminal import one_line
from car_client.client import Client
from car_client.errors import CardError
from car_client.paths import usable_paths
from car_protocol.socket_path import SYSTEM_SOCKET


class NotWell(CardError):
    """Some check failed."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--system", action="store_true", default=SUPPRESS, help="look at the system service")


def run(client: Client, options: Namespace) -> None:
    """Print a line for each check; raises NotWell where one failed."""
    findings = examine(client, options)
    for finding in findings:
        print(one_line(finding.line()))
    failed = sum(finding.level == "fail" for finding in findings)
    if failed:
        raise NotWell(f"{failed} of {len(findings)} checks failed")


def examine(client: Client, options: Namespace) -> list[Finding]:
    """Return what was found, from the socket up to the models."""
    paths = usable_paths(SYSTEM_SOCKET if options.system else options.socket)
    path = next((each for each in paths if each.exists()), paths[0])
    findings = [setting.socket(path), *setting.permissions(path)]
    if findings[0].level == "ok":
        findings.append(setting.peer(path))
    if findings[-1].what == "daemon" and findings[-1].level == "ok":
        findings += served.findings(client)
    return [*findings, setting.unit(Steps(), system=options.system)]
