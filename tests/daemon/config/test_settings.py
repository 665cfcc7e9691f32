"""The configuration file's tables of memory and of models, and the flags over them."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from car_base.guide import PATH
from car_daemon.config.settings import Config, Flags, load_config
from car_daemon.config.tables import ConfigError
from car_protocol.hub import SYSTEM_MODELS


def loaded(
    folder: Path, text: str, *, gpu_layers: int | None = None, capacity: int | None = None, **env: str
) -> Config:
    file = folder / "card.toml"
    file.write_text(text)
    flags = Flags(config=str(file), gpu_layers=gpu_layers, capacity=capacity)
    return load_config(flags, {"XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder)} | env)


def test_models_share_what_is_free_and_stay_for_ten_minutes_unless_it_says_otherwise(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[models.m]\npath = "m.gguf"\n')
    model = config.models["m"]
    assert (config.budget_bytes, model.keep_alive_s, model.pinned) == (None, 600.0, False)


def test_prefixes_are_stored_only_where_a_folder_is_configured(tmp_path: Path) -> None:
    without = loaded(tmp_path, '[models.m]\npath = "m.gguf"\n').models["m"]
    assert without.cache_dir is None
    text = '[scheduler]\ncache_dir = "~/cells"\ncache_bytes = 16777216\n[models.m]\npath = "m.gguf"\n'
    model = loaded(tmp_path, text).models["m"]
    assert (model.cache_dir, model.cache_bytes) == (Path.home() / "cells", 1 << 24)


def test_the_memory_budget_and_keep_alive_of_the_file_are_used(tmp_path: Path) -> None:
    text = '[memory]\nbudget_bytes = 9000000000\n[models.m]\npath = "m.gguf"\nkeep_alive_s = 0.5\npinned = true\n'
    config = loaded(tmp_path, text)
    model = config.models["m"]
    assert (config.budget_bytes, model.keep_alive_s, model.pinned) == (9_000_000_000, 0.5, True)


@pytest.mark.parametrize(
    ("text", "margin"),
    [("", 2 << 30), ("engine_margin_bytes = 268435456\n", 1 << 28), ('engine_margin_bytes = "off"\n', None)],
)
def test_the_margin_of_engines_is_2_gib_unless_the_file_changes_it(
    tmp_path: Path, text: str, margin: int | None
) -> None:
    config = loaded(tmp_path, f'[memory]\n{text}[models.m]\npath = "m.gguf"\n')
    assert {model.margin_bytes for model in config.models.values()} == {margin}


@pytest.mark.parametrize(
    ("text", "places", "layers"),
    [
        ("", ["auto"], [0]),
        ('device = "auto"\n', ["auto"], [0]),
        ('device = "auto"\ngpu_layers = 9\n', ["gpu"], [9]),
        ("gpu_layers = 0\n", ["cpu"], [0]),
        ("gpu_layers = 9\n", ["gpu"], [9]),
        ("replicas = 2\n", ["auto", "auto"], [0, 0]),
        ('device = "gpu"\n', ["gpu"], [-1]),
        ('device = ["gpu0", "cpu"]\ngpu_layers = 9\n', ["gpu0", "cpu"], [9, 0]),
        ('device = ["gpu0", "gpu1"]\nreplicas = 2\n', ["gpu0", "gpu1"] * 2, [-1] * 4),
    ],
)
def test_every_replica_has_its_device_and_its_layers(
    tmp_path: Path, text: str, places: list[str], layers: list[int]
) -> None:
    model = loaded(tmp_path, f'[models.m]\npath = "m.gguf"\n{text}').models["m"]
    assert model.places == places
    assert [model.layers_on(place) for place in places] == layers


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[memory]\nbudget = 1\n", "memory.budget"),
        ('[scheduler]\ncache_dir = "cells"\n', "scheduler.cache_dir"),
        ('[scheduler]\ncache_dir = "~nobody-of-this-name/cells"\n', "scheduler.cache_dir"),
        ("[scheduler]\ncache_bytes = 1000\n", "scheduler.cache_bytes"),
        ("[memory]\nbudget_bytes = 0\n", "memory.budget_bytes"),
        ("[memory]\nengine_margin_bytes = 268435455\n", "memory.engine_margin_bytes"),
        ('[memory]\nengine_margin_bytes = "on"\n', "memory.engine_margin_bytes"),
        ('[models.m]\npath = "m.gguf"\nkeep_alive_s = -1\n', "models.m.keep_alive_s"),
        ('[models.m]\npath = "m.gguf"\npined = true\n', "models.m.pined"),
        ('[models.m]\npath = "m.gguf"\ndevice = "tpu"\n', "models.m.device"),
        ('[models.m]\npath = "m.gguf"\ndevice = ["cpu", "gpu01"]\n', "models.m.device[1]"),
        ('[models.m]\npath = "m.gguf"\nreplicas = 0\n', "models.m.replicas"),
        ('[models.m]\npath = "~\\u0000b/m.gguf"\n', "models.m.path"),
        ('[daemon]\nsocket = "/tmp/a\\u0000b"\n', "daemon.socket"),
        (f"a = {'[' * 5000}", "config"),
        ('[models.m]\npath = "m.gguf"\ndevice = "gpu"\ngpu_layers = 0\n', "models.m.gpu_layers"),
        ('[models.m]\npath = "m.gguf"\ndevice = "cpu"\ngpu_layers = 9\n', "models.m.gpu_layers"),
        ('[models.m]\npath = "m.gguf"\nprojector = "~nobody-of-that-name/p"\n', "models.m.projector"),
        ('[models.m]\npath = "m.gguf"\nchat_template = "~nobody-of-that-name/t"\n', "models.m.chat_template"),
        ('[models.m]\npath = "m.gguf"\ntool_style = "mine"\n', "models.m.tool_style"),
        ('[models.m]\npath = "m.gguf"\nkv_type = "q5_1"\n', "models.m.kv_type"),
        ('[models.m]\npath = "m.gguf"\nthinking_tags = ["<a>"]\n', "models.m.thinking_tags"),
        ('[models.m]\npath = "m.gguf"\nthinking_tags = ["<a>", ""]\n', "models.m.thinking_tags[1]"),
        ('[models.m]\npath = "m.gguf"\nadapters = {a = "~nobody-of-that-name/a"}\n', "models.m.adapters.a"),
    ],
)
def test_an_invalid_key_is_named_in_full(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('device = "cuda"', 'device: write "auto", "cpu", "gpu" for all GPUs, or "gpu0" to "gpu99"'),
        ('device = ["gpu0", "auto"]', 'device[1]: write "cpu", "gpu" for all GPUs'),
        ("device = []", "device: Expected `array` of length >= 1"),
        ('kv_type = "q5"', 'kv_type: Invalid enum value \'q5\': write "f16" or "q8_0" or "q4_0"'),
        ('tool_style = "mine"', 'write "'),
        ('device = ["gpu0", "gpu1"]\nreplicas = 9', "18 engines are too many for this machine, the limit is 16"),
    ],
)
def test_an_invalid_value_is_refused_with_what_may_be_written(tmp_path: Path, text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(remedy)):
        loaded(tmp_path, f'[models.m]\npath = "m.gguf"\n{text}\n')


def test_values_of_other_tables_are_refused_with_their_choices_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'daemon.log_format: Invalid enum value .*: write "'):
        loaded(tmp_path, '[daemon]\nlog_format = "xml"\n')


def test_the_syntax_of_a_model_can_be_configured(tmp_path: Path) -> None:
    text = '[models.m]\npath = "m.gguf"\ntool_style = "glm"\nthinking_tags = ["<a>", "</a>"]\n'
    settings = loaded(tmp_path, text).models["m"]
    assert (settings.tool_style, settings.thinking_tags) == ("glm", ("<a>", "</a>"))


def test_the_kv_type_is_16_bit_floats_unless_it_is_configured(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[models.m]\npath = "m.gguf"\n').models["m"].kv_type == "f16"
    assert loaded(tmp_path, '[models.m]\npath = "m.gguf"\nkv_type = "q4_0"\n').models["m"].kv_type == "q4_0"


@pytest.mark.parametrize(("device", "layers"), [("cpu", -1), ("cpu", 9), ("gpu0", 0)])
def test_a_flag_that_contradicts_the_device_of_the_file_is_refused(tmp_path: Path, device: str, layers: int) -> None:
    text = f'default_model = "m"\n[models.m]\npath = "m.gguf"\ndevice = "{device}"\n'
    with pytest.raises(ConfigError, match=f"--gpu-layers {layers} contradicts device") as refused:
        loaded(tmp_path, text, gpu_layers=layers)
    assert refused.value.key == "gpu_layers"


def test_a_capacity_of_0_is_raised_to_1_and_warned_about(tmp_path: Path) -> None:
    for config in (loaded(tmp_path, "", capacity=0), loaded(tmp_path, "[capacity]\nsequences = 0\n")):
        assert (config.machine_limit, config.models["guide"].sequences) == (1, 1)
        assert config.warnings == ["a capacity of 0 is raised to 1: give at least 1"]


def test_the_built_in_model_can_be_configured_without_its_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, "[models.guide]\nsequences = 3\n")
    assert (config.models["guide"].path, config.models["guide"].sequences) == (PATH, 3)
    given = loaded(tmp_path, '[models.guide]\npath = "/m.gguf"\n')
    assert given.models["guide"].path == Path("/m.gguf")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "it is not a regular file"),
        (lambda path: path.write_bytes(b"#" * 2**23), "it is longer than 4194304 bytes"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (lambda path: path.mkdir(), "it is not a regular file"),
    ],
)
def test_a_file_that_is_not_regular_or_too_long_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "card.toml")
    before = os.listdir("/dev/fd")
    with pytest.raises(ConfigError, match=words):
        load_config(Flags(config=str(tmp_path / "card.toml")), {})
    assert os.listdir("/dev/fd") == before
    assert load_config(Flags(config=os.devnull), {}).default_model == "guide"


# Files of the hub.

FILE = "owner/repo/sub/m.gguf"
HF = f'[models.m]\nhf = "{FILE}"\n'


def test_a_file_of_the_hub_has_a_path_before_it_is_downloaded(tmp_path: Path) -> None:
    model = loaded(tmp_path, HF, XDG_DATA_HOME="/data").models["m"]
    assert (model.path, model.pull) == (Path("/data/car/models") / FILE, f"carctl models pull hf:{FILE}")
    assert loaded(tmp_path, '[models.m]\npath = "m.gguf"\n').models["m"].pull is None


def test_a_system_service_has_its_downloads_in_its_own_folder(tmp_path: Path) -> None:
    model = loaded(tmp_path, HF, STATE_DIRECTORY="/var/lib/car", XDG_DATA_HOME="/data").models["m"]
    assert (model.path, model.pull) == (SYSTEM_MODELS / FILE, f"carctl --system models pull hf:{FILE}")


def test_a_command_to_copy_is_quoted(tmp_path: Path) -> None:
    model = loaded(tmp_path, '[models.m]\nhf = "owner/repo/a (1).gguf"\n').models["m"]
    assert model.pull == "carctl models pull 'hf:owner/repo/a (1).gguf'"


def test_two_people_with_one_key_are_refused(tmp_path: Path) -> None:
    key = "0" * 64
    with pytest.raises(ConfigError, match="is that of anna") as refused:
        loaded(tmp_path, f'[people.anna]\nkey = "{key}"\n[people.twin]\nkey = "{key}"\n')
    assert refused.value.key == "people.twin.key"


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        (f'path = "m.gguf"\nhf = "{FILE}"', "models.m.hf", "give either path or hf, not both"),
        ("pinned = true", "models.m.path", "give the path of a GGUF file, or hf ="),
        ('hf = "m.gguf"', "models.m.hf", "'m.gguf' is not owner/repo/path/file.gguf"),
        ('hf = "owner/repo/m.bin"', "models.m.hf", "is not a GGUF file"),
        ('path = "~nobody-of-that-name/m.gguf"', "models.m.path", "no such user"),
    ],
)
def test_a_model_needs_exactly_one_valid_path_or_hub_file(tmp_path: Path, table: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        loaded(tmp_path, f"[models.m]\n{table}\n")
    assert refused.value.key == key
    assert str(refused.value).startswith(f"{key}: ")


def test_a_file_of_the_hub_may_be_the_default_model_by_a_flag(tmp_path: Path) -> None:
    config = load_config(Flags(model=f"hf:{FILE}"), {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": "/data"})
    assert config.default_model == "m"
    assert config.models["m"].path == Path("/data/car/models") / FILE


def test_users_have_weights_by_uid(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").weights == {}
    assert loaded(tmp_path, "[fairness]\nweights = { 1000 = 2, 1001 = 0.5 }\n").weights == {1000: 2.0, 1001: 0.5}


@pytest.mark.parametrize("weights", ["{ root = 2 }", "{ 1000 = 0 }", "{ 1000 = -1 }", '{ 1000 = "2" }'])
def test_a_weight_that_is_none_is_refused(tmp_path: Path, weights: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, f"[fairness]\nweights = {weights}\n")
    assert refused.value.key.startswith("fairness.weights")
