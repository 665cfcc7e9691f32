"""The models that may be requested."""

from pathlib import Path

import pytest

from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.settings import ModelSettings
from car_protocol.errors import RpcError


@pytest.mark.parametrize("default", [False, True])
def test_a_model_that_failed_may_be_tried_again_after_ten_seconds_and_the_default_one_is_so_by_itself(
    default: bool,
) -> None:
    now = 0.0
    entry = ModelEntry("m", ModelSettings(Path("m")), default=default, on_change=lambda _: None, clock=lambda: now)
    assert not entry.may_try_again
    entry.become("failed", reason="a fixed text")
    now = 9.9
    assert not entry.may_try_again
    now = 10.0
    assert entry.may_try_again is not default
    entry.become("loading")
    assert not entry.may_try_again


def test_models_that_failed_just_now_and_unknown_ones_are_refused() -> None:
    pool = ModelPool({name: ModelSettings(Path(name)) for name in "ab"}, "a", on_change=lambda _: None)
    assert pool.servable("b").state == "unloaded"
    pool.named("b").become("failed", reason="a fixed text")
    for name, why in (("b", "a fixed text"), ("c", "unknown model")):
        with pytest.raises(RpcError) as refused:
            pool.servable(name)
        assert (refused.value.reason, refused.value.data) == ("model_unavailable", {"why": why})


def test_pinned_is_what_is_configured_now_and_the_default_model() -> None:
    pool = ModelPool({name: ModelSettings(Path(name)) for name in "ab"}, "a", on_change=lambda _: None)
    assert [entry.pinned for entry in pool] == [True, False]
    pool.configure({"b": ModelSettings(Path("b"), pinned=True)})
    assert [entry.pinned for entry in pool] == [True, True]


def test_a_model_that_a_reload_leaves_out_is_unknown_and_seen_while_it_is_in_memory() -> None:
    pool = ModelPool({name: ModelSettings(Path(name)) for name in "ab"}, "a", on_change=lambda _: None)
    pool.named("b").become("ready")
    pool.configure({"a": ModelSettings(Path("a"))})
    with pytest.raises(RpcError):
        pool.named("b")
    gone = pool.accepted("b")
    assert (list(pool), pool.is_configured(gone)) == ([pool.default, gone], False)
    gone.become("unloaded")
    assert list(pool) == [pool.default]
    pool.configure({"a": ModelSettings(Path("a")), "b": ModelSettings(Path("b"))})
    assert pool.named("b") is gone


def test_a_known_device_takes_the_place_of_auto_and_no_other_also_after_a_reload() -> None:
    auto = ModelSettings(Path("a"), devices=("auto",), auto=True)
    stated = ModelSettings(Path("b"), devices=("gpu1",), gpu_layers=7)
    pool = ModelPool({"a": auto, "b": stated}, "a", on_change=lambda _: None)
    assert (pool.named("a").configured.places, pool.named("a").is_on("gpu0")) == (["auto"], True)
    pool.place("gpu")
    assert (pool.named("a").configured.places, pool.named("a").configured.gpu_layers) == (["gpu"], -1)
    assert pool.named("b").configured == stated
    pool.configure({"a": auto, "b": stated, "c": auto})
    assert (pool.named("a").configured.places, pool.named("c").configured.places) == (["gpu"], ["gpu"])
    pool.place("cpu")
    assert (pool.named("a").configured.places, pool.named("a").configured.gpu_layers) == (["cpu"], 0)
    assert pool.named("a").is_on("cpu")
    assert not pool.named("a").is_on("gpu")
