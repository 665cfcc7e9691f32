"""What the configuration file says of memory and of models."""

from pathlib import Path

import pytest

from car_daemon.config import Config, ConfigError, Flags, load_config


def loaded(folder: Path, text: str) -> Config:
    file = folder / "card.toml"
    file.write_text(text)
    return load_config(Flags(config=str(file)), {"XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder)})


def test_models_share_what_is_free_and_stay_for_ten_minutes_unless_it_says_otherwise(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[models.m]\npath = "m.gguf"\n')
    model = config.models["m"]
    assert (config.budget_bytes, model.keep_alive_s, model.pinned) == (None, 600.0, False)


def test_a_budget_and_how_long_models_stay_are_taken(tmp_path: Path) -> None:
    text = '[memory]\nbudget_bytes = 9000000000\n[models.m]\npath = "m.gguf"\nkeep_alive_s = 0.5\npinned = true\n'
    config = loaded(tmp_path, text)
    model = config.models["m"]
    assert (config.budget_bytes, model.keep_alive_s, model.pinned) == (9_000_000_000, 0.5, True)


@pytest.mark.parametrize(
    ("text", "places", "layers"),
    [
        ("", ["cpu"], [0]),
        ("gpu_layers = 9\n", ["gpu"], [9]),
        ("replicas = 2\n", ["cpu", "cpu"], [0, 0]),
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
        ("[memory]\nbudget_bytes = 0\n", "memory.budget_bytes"),
        ('[models.m]\npath = "m.gguf"\nkeep_alive_s = -1\n', "models[...].keep_alive_s"),
        ('[models.m]\npath = "m.gguf"\npined = true\n', "models.m.pined"),
        ('[models.m]\npath = "m.gguf"\ndevice = "tpu"\n', "models[...].device"),
        ('[models.m]\npath = "m.gguf"\ndevice = ["cpu", "gpu01"]\n', "models[...].device[1]"),
        ('[models.m]\npath = "m.gguf"\nreplicas = 0\n', "models[...].replicas"),
        ('[models.m]\npath = "m.gguf"\ndevice = "gpu"\ngpu_layers = 0\n', "gpu_layers"),
        ('[models.m]\npath = "m.gguf"\ndevice = "cpu"\ngpu_layers = 9\n', "gpu_layers"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert refused.value.key == key
