"""The table of the cluster, and the keys of models that are placed on it."""

import re
from pathlib import Path

import pytest

from car_base.guide import PATH
from car_daemon.config.tables import ClusterTable, ConfigError
from car_daemon.models.settings import ModelSettings, Needs
from tests.daemon.config.test_settings import loaded

FILE = "owner/repo/m-Q4_K_M.gguf"
CLUSTER = '[cluster]\naddress = "10.0.0.1:6379"\n'


def placed(folder: Path, text: str, cluster: str = CLUSTER) -> ModelSettings:
    """Return the settings of a model on a cluster, with further keys."""
    return loaded(folder, f'{cluster}[models.m]\npath = "/m.gguf"\nplace = "ray"\n{text}').models["m"]


def test_without_its_table_there_is_no_cluster_and_every_model_is_here(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[models.m]\npath = "m.gguf"\n')
    assert config.cluster is None
    assert not any(model.placed for model in config.models.values())


def test_a_cluster_has_an_address_a_token_and_a_timeout(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[cluster]\naddress = "auto"\ntoken = "~/t"\nplace_timeout_s = 5\n')
    assert config.cluster == ClusterTable(address="auto", token=str(Path.home() / "t"), place_timeout_s=5)


@pytest.mark.parametrize("address", ["head.example:6379", "10.0.0.1:1", "[fd00::1]:6379", "auto"])
def test_the_address_of_a_cluster_is_that_of_its_head(tmp_path: Path, address: str) -> None:
    config = loaded(tmp_path, f'[cluster]\naddress = "{address}"\n')
    assert config.cluster is not None
    assert config.cluster.address == address


@pytest.mark.parametrize("address", ["", "local", "ray://h:10001", "h", "h:0", "h:70000", "h:x", "a b:1", "h:1/x"])
def test_an_address_that_no_head_has_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT: give the one that `ray start --head` prints") as refused:
        loaded(tmp_path, f'[cluster]\naddress = "{address}"\n')
    assert refused.value.key == "cluster.address"


@pytest.mark.parametrize(
    ("text", "threads", "needs"),
    [
        ("", 1, Needs(cpus=1.0, gpus=0.0)),
        ("threads = 8\n", 8, Needs(cpus=8.0, gpus=0.0)),
        ("needs = { cpus = 6 }\n", 6, Needs(cpus=6.0, gpus=0.0)),
        ("needs = { cpus = 0.5 }\n", 1, Needs(cpus=0.5, gpus=0.0)),
        ("threads = 2\nneeds = { cpus = 3 }\n", 2, Needs(cpus=3.0, gpus=0.0)),
        ('device = "gpu"\n', 1, Needs(cpus=1.0, gpus=1.0)),
        ("gpu_layers = 9\n", 1, Needs(cpus=1.0, gpus=1.0)),
        ("needs = { gpus = 2 }\n", 1, Needs(cpus=1.0, gpus=2.0)),
        ('needs = { labels = { pool = "a" } }\n', 1, Needs(cpus=1.0, gpus=0.0, labels={"pool": "a"})),
    ],
)
def test_what_an_engine_needs_of_a_node_follows_from_its_threads_and_its_device(
    tmp_path: Path, text: str, threads: int, needs: Needs
) -> None:
    settings = placed(tmp_path, text)
    assert (settings.threads, settings.needs, settings.spread) == (threads, needs, True)
    assert settings.places == ["gpu" if needs.gpus else "cpu"]


def test_a_placed_model_has_more_replicas_and_its_own_sequences_whatever_the_machine_s_limit(tmp_path: Path) -> None:
    settings = placed(tmp_path, "replicas = 256\nsequences = 9\n", f"[capacity]\nsequences = 2\n{CLUSTER}")
    assert (settings.replicas, settings.sequences, settings.policy) == (256, 9, "config")


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        ('path = "/m"\nplace = "ray"\n', "place", "needs the table \\[cluster\\]"),
        ('path = "/m"\nplace = "moon"\n', "place", "Invalid enum value"),
        ('path = "/m"\nspread = true\n', "spread", 'add place = "ray" or leave it out'),
        ('path = "/m"\nneeds = {}\n', "needs", 'add place = "ray" or leave it out'),
        ('path = "/m"\nreplicas = 17\n', "replicas", "17 engines are too many .* limit is 16: add place"),
    ],
)
def test_keys_of_placed_models_are_refused_for_others(tmp_path: Path, text: str, key: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as refused:
        loaded(tmp_path, f"[models.m]\n{text}")
    assert refused.value.key == f"models.m.{key}"


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        ("replicas = 257\n", "replicas", "<= 256"),
        ('spread = "wide"\n', "spread", "Invalid enum value"),
        ('device = "gpu0"\n', "device", 'write "cpu" or "gpu"'),
        ('device = ["gpu"]\n', "device", 'write "cpu" or "gpu"'),
        ("needs = { gpus = 1.5 }\n", "needs.gpus", "1.5 is not possible: reserve a part of one GPU, or whole ones"),
        ('device = "cpu"\nneeds = { gpus = 1 }\n', "needs.gpus", "contradicts device"),
        ('device = "gpu"\nneeds = { gpus = 0 }\n', "needs.gpus", "contradicts device"),
        ("needs = { gpus = 0.00001 }\n", "needs.gpus", "1e-05 is not possible"),
        ("needs = { cpus = 0 }\n", "needs.cpus", ">= 0.0001"),
        ("needs = { resources = { GPU = 1 } }\n", "needs.resources", "'GPU': write needs.gpus"),
        ('needs = { resources = { "" = 1 } }\n', "needs.resources", "name the resource"),
        ('needs = { labels = { "a b" = "x" } }\n', "needs.labels", "'a b': is not the name of a label"),
        ('needs = { labels = { "ray.io/node-id" = "x" } }\n', "needs.labels", "give the node a label of its own"),
        ('needs = { labels = { a = "" } }\n', "needs.labels", "'' is not a value of a label: write a word, in(a, b)"),
        ('needs = { labels = { a = "in()" } }\n', "needs.labels", "'in()' is not a value"),
        ('needs = { labels = { a = "in(a,,b)" } }\n', "needs.labels", "'in(a,,b)' is not a value"),
        ('needs = { labels = { a = "!!b" } }\n', "needs.labels", "'!!b' is not a value"),
        ("needs = { cpu = 1 }\n", "needs", "unknown field `cpu`"),
        ("needs = { labels = { pool = 1 } }\n", "needs.labels[...]", "Expected `str`"),
        ('projector = "p.gguf"\n', "projector", "p.gguf is not absolute"),
        ('adapters = { a = "a.gguf" }\n', "adapters.a", "a.gguf is not absolute"),
    ],
)
def test_needs_that_no_node_can_have_are_refused(tmp_path: Path, text: str, key: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)) as refused:
        placed(tmp_path, text)
    assert refused.value.key == f"models.m.{key}"


def test_a_file_with_a_relative_path_cannot_be_placed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"m\.gguf is not absolute: give the path that the file has on every node"):
        loaded(tmp_path, f'{CLUSTER}[models.m]\npath = "m.gguf"\nplace = "ray"\n')


def test_the_built_in_model_and_a_file_of_the_hub_can_be_placed(tmp_path: Path) -> None:
    text = f'{CLUSTER}[models.guide]\nplace = "ray"\n[models.m]\nhf = "{FILE}"\nplace = "ray"\n'
    models = loaded(tmp_path, text).models
    assert (models["guide"].path, models["guide"].placed) == (PATH, True)
    assert (models["m"].hub, models["m"].placed) == (FILE, True)
