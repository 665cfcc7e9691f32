"""Names of files of the hub, and where they are once they were downloaded."""

import sys
from pathlib import Path

import pytest

from car_protocol.hub import HubFile, hub_file, models_folder


@pytest.mark.parametrize(
    ("name", "repo", "path"),
    [
        ("owner/repo/m.gguf", "owner/repo", "m.gguf"),
        ("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf"),
        ("o/r_1.2/a b/ü (1).gguf", "o/r_1.2", "a b/ü (1).gguf"),
    ],
)
def test_a_name_is_a_repository_and_a_path_in_it(name: str, repo: str, path: str) -> None:
    file = hub_file(name)
    assert (file, str(file)) == (HubFile(repo, path), f"hf:{name}")
    assert file.under(Path("/models")) == Path("/models") / name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "m.gguf",
        "owner/m.gguf",
        "owner/repo/",
        "hf:owner/repo/m.gguf",
        "/owner/repo/m.gguf",
        "../repo/m.gguf",
        "owner/../m.gguf",
        "owner/repo/../m.gguf",
        "owner/repo/a//m.gguf",
        "owner/repo/./m.gguf",
        "owner/repo/.m.gguf",
        "owner/repo/m\n.gguf",
        "owner/repo/m\0.gguf",
        "owner/re--po/m.gguf",
        "owner/re..po/m.gguf",
        "-owner/repo/m.gguf",
        "o" * 97 + "/repo/m.gguf",
        f"owner/repo/{'m' * 200}.gguf",
        f"owner/repo/{'m/' * 600}m.gguf",
        "owner/repo/\udcff.gguf",
    ],
)
def test_what_names_no_file_is_refused_with_the_form_of_a_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"owner/repo/path/file\.gguf"):
        hub_file(name)


def test_what_is_no_gguf_file_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a GGUF file"):
        hub_file("owner/repo/model.safetensors")


def test_the_first_part_of_a_model_stands_for_all_of_them() -> None:
    parts = hub_file("o/r/q8/m-00001-of-00003.gguf").parts()
    assert [part.path for part in parts] == [f"q8/m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert {part.repo for part in parts} == {"o/r"}
    with pytest.raises(ValueError, match=r"name the first, m-00001-of-00003\.gguf"):
        hub_file("o/r/m-00002-of-00003.gguf")


@pytest.mark.parametrize("path", ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00000.gguf", "m-1-of-3.gguf"])
def test_a_name_that_is_no_part_s_is_one_file(path: str) -> None:
    file = HubFile("o/r", path)
    assert (hub_file(f"o/r/{path}"), file.parts()) == (file, [file])


def test_models_are_in_the_folder_for_data() -> None:
    assert models_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/car/models")


def test_without_it_they_are_where_the_platform_keeps_data() -> None:
    ours = ("Library", "Application Support") if sys.platform == "darwin" else (".local", "share")
    assert models_folder({"XDG_DATA_HOME": ""}) == Path.home().joinpath(*ours, "car", "models")
