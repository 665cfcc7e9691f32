"""The paths of configured models, and the settings of the Ray cluster and of the models that are placed on it."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from car_base.host.devices import AUTO, CPU, GPU
from car_base.ipc.labels import WORD, LabelExpression
from car_daemon.config.tables import ClusterTable, ConfigError, ModelTable
from car_daemon.models.settings import ModelSettings, Needs
from car_protocol.hub import PREFIX, hub_file, models_folder
from car_protocol.sockets import read_named_port


class Located(NamedTuple):
    """The path of a model's file, and the command that downloads it; None for a file given by its path."""

    path: Path
    pull: str | None


def located(table: ModelTable, env: Mapping[str, str], key: str) -> Located:
    """Return the location of the file of the model with this key; raises ConfigError."""
    if table.path is not None and table.hf is not None:
        raise ConfigError(f"{key}.hf: give either path or hf, not both", f"{key}.hf")
    if table.hf is not None:
        try:
            file = hub_file(table.hf)
        except ValueError as error:
            raise ConfigError(f"{key}.hf: {error}", f"{key}.hf") from error
        # In the service manager's folder, if it gives one, else in the user's.
        state = env.get("STATE_DIRECTORY")
        folder, option = (Path(state) / "models", " --system") if state else (models_folder(env), "")
        return Located(file.under(folder), f"carctl{option} models pull {shlex.quote(str(file))}")
    if table.path is None:
        why = 'give the path of a GGUF file, or hf = "owner/repo/file.gguf"'
        raise ConfigError(f"{key}.path: {why}", f"{key}.path")
    return Located(expanded(table.path, f"{key}.path"), None)


def given_table(model: str) -> ModelTable:
    """Return the table for the argument of `--model`: a path, or a file of the hub."""
    return ModelTable(hf=model.removeprefix(PREFIX)) if model.startswith(PREFIX) else ModelTable(path=model)


def expanded(path: str, key: str) -> Path:
    """Return the path that a key has, with `~` expanded; raises ConfigError."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{key}: there is no such user as in {path!r}: give an absolute path", key) from error


REPLICAS_HERE = 16
_AUTO_ADDRESS = "auto"
# What Ray takes as a label's name.
_LABEL = re.compile(rf"(?:[A-Za-z0-9.-]{{1,253}}/)?{WORD}")
_NODE_ID = "ray.io/node-id"
# Resources that a key of their own reserves.
_KEYS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_bytes", "object_store_memory": "memory_bytes"}
_LEAST_GPU = 0.0001


def cluster_of(table: ClusterTable | None) -> ClusterTable | None:
    """Return the table with the token's path expanded; raises ConfigError."""
    if table is None:
        return None
    try:
        if table.address != _AUTO_ADDRESS:
            read_named_port(table.address, "give the one that `ray start --head` prints, or auto for a head here")
    except ValueError as error:
        raise ConfigError(f"cluster.address: {error}", "cluster.address") from error
    return structs.replace(table, token=None if table.token is None else str(expanded(table.token, "cluster.token")))


def check_place(table: ModelTable, key: str, *, clustered: bool) -> None:
    """Raise ConfigError for keys that contradict the model's place."""
    if table.place == "here":
        _check_here(table, key)
    elif not clustered:
        why = f'place = "{table.place}" needs the table [cluster] with the address of its head: add it'
        raise ConfigError(f"{key}.place: {why}", f"{key}.place")
    else:
        _check_needs(table, key)


def _check_here(table: ModelTable, key: str) -> None:
    engines = table.replicas * (1 if isinstance(table.device, str) else len(table.device))
    if engines > REPLICAS_HERE:
        why = f'{engines} engines are too many for this machine, the limit is {REPLICAS_HERE}: add place = "ray"'
        raise ConfigError(f"{key}.replicas: {why}", f"{key}.replicas")
    for name in ("spread", "needs"):
        if getattr(table, name) is not None:
            why = 'holds only for engines on a cluster: add place = "ray" or leave it out'
            raise ConfigError(f"{key}.{name}: {why}", f"{key}.{name}")


def _check_needs(table: ModelTable, key: str) -> None:
    if table.device not in (AUTO, CPU, GPU):
        why = 'an engine on a cluster computes on the GPUs that needs.gpus reserves: write "cpu" or "gpu"'
        raise ConfigError(f"{key}.device: {why}", f"{key}.device")
    if table.needs is None:
        return
    _check_names(table.needs, f"{key}.needs")
    gpus = table.needs.gpus
    if gpus is None:
        return
    if (gpus > 1 and gpus != int(gpus)) or 0 < gpus < _LEAST_GPU:
        why = f"{gpus:g} is not possible: reserve a part of one GPU, or whole ones"
        raise ConfigError(f"{key}.needs.gpus: {why}", f"{key}.needs.gpus")
    on_gpu = table.device == GPU or (table.device == AUTO and bool(table.gpu_layers))
    on_cpu = table.device == CPU or table.gpu_layers == 0
    if (on_gpu and gpus == 0) or (on_cpu and gpus > 0):
        raise ConfigError(f"{key}.needs.gpus = {gpus:g} contradicts device: leave one of them out", f"{key}.needs.gpus")


def _check_names(needs: Needs, key: str) -> None:
    """Raise ConfigError for labels and resources that Ray refuses, or that the daemon sets itself."""
    for name, value in needs.labels.items():
        try:
            _check_label(name, value)
        except ValueError as error:
            raise ConfigError(f"{key}.labels: {name[:80]!r}: {error}", f"{key}.labels") from error
    for name in needs.resources:
        if name in _KEYS or not name:
            why = f"write needs.{_KEYS[name]}" if name else "name the resource"
            raise ConfigError(f"{key}.resources: {name!r}: {why}", f"{key}.resources")


def _check_label(name: str, value: str) -> None:
    """Raise ValueError for a label that Ray refuses, and for the one that the daemon sets itself."""
    if name == _NODE_ID:
        raise ValueError("the daemon chooses nodes by it: give the node a label of its own by `ray start --labels`")
    if not _LABEL.fullmatch(name):
        raise ValueError("is not the name of a label: write letters and digits, with ._- between them")
    LabelExpression.parse(value)


def placed_devices(table: ModelTable) -> ModelTable:
    """Return the table of a placed model with a device: a GPU if one is needed, else the CPU."""
    if table.device != AUTO or table.gpu_layers is not None:
        return table
    on_gpu = table.needs is not None and bool(table.needs.gpus)
    return structs.replace(table, device=GPU if on_gpu else CPU)


def placed(settings: ModelSettings, table: ModelTable, name: str) -> ModelSettings:
    """Return the settings of a model on a cluster: threads and reserved cores follow from each other.

    Raises ConfigError.
    """
    for which, path in _paths(settings):
        # The working directory of a node is another one.
        if not path.is_absolute():
            key = f"models.{name}.{which}"
            raise ConfigError(f"{key}: {path} is not absolute: give the path that the file has on every node", key)
    needs = table.needs or Needs()
    threads = table.threads or max(1, int(needs.cpus or 1))
    cpus = float(threads) if needs.cpus is None else needs.cpus
    gpus = float(CPU not in settings.places) if needs.gpus is None else needs.gpus
    return structs.replace(
        settings,
        place=table.place,
        spread=True if table.spread is None else table.spread,
        needs=structs.replace(needs, cpus=cpus, gpus=gpus),
        threads=threads,
        hub=table.hf,
    )


def _paths(settings: ModelSettings) -> list[tuple[str, Path]]:
    beside = {"projector": settings.projector, "chat_template": settings.chat_template}
    adapters = {f"adapters.{name}": path for name, path in settings.adapters.items()}
    return [(key, path) for key, path in ({"path": settings.path} | beside | adapters).items() if path is not None]
