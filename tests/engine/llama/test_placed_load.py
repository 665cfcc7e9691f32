"""A placement as llama.cpp gets it: the call that loads a model, recorded."""

import ctypes
from typing import Any

import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - the log's callback, which the fake calls

from car_base.capacity.placement import Placement
from car_engine.llama.model import LlamaModel, ModelError

# llama.cpp's numbers for a model on one device, and for one whose layers are split over several.
ONE_DEVICE, BY_LAYER = 0, 1


class Override(ctypes.Structure):
    """Ggml's pair of a pattern and the type of a buffer."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p))


class Recorder:
    """llama.cpp's function that loads a file; it reads its arguments, and fails."""

    def __init__(self) -> None:
        self.layers = 0
        self.split: list[float] = []
        self.overrides: list[tuple[bytes, int]] = []
        self.device: tuple[int, int] = (-1, -1)
        self.error = b""  # which it logs

    def load(self, path: bytes, params: Any) -> None:
        """Read everything that a placement sets, while its arrays are there."""
        assert path == b"model.gguf"
        callback, data = binding.llama_log_callback(), ctypes.c_void_p()
        binding.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
        callback(4, self.error, data)
        self.layers = params.n_gpu_layers
        self.split = [params.tensor_split[number] for number in range(3)] if params.tensor_split else []
        self.device = params.split_mode, params.main_gpu
        if params.tensor_buft_overrides:
            pairs = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(Override))
            number = 0
            while pairs[number].pattern is not None:
                self.overrides.append((pairs[number].pattern, pairs[number].buffers))
                number += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The recorder in place of llama.cpp's function."""
    found = Recorder()
    monkeypatch.setattr("car_engine.llama.model.binding.llama_model_load_from_file", found.load)
    return found


def load(placement: Placement | None) -> None:
    """Load by a placement."""
    with pytest.raises(ModelError, match="not a model"):
        LlamaModel("model.gguf", gpu_layers=0, placement=placement, progress=lambda _: None)


def test_a_split_over_devices_is_passed_as_its_layers_by_device(recorder: Recorder) -> None:
    load(Placement((20, 0, 13), (), 2048, 2048, (1, 0, 1), 1))
    assert (recorder.layers, recorder.split, recorder.overrides) == (33, [20.0, 0.0, 13.0], [])
    assert recorder.device == (BY_LAYER, 0)


def test_experts_of_layers_that_stay_are_passed_as_overrides_with_the_hosts_buffers(recorder: Recorder) -> None:
    load(Placement((33,), (0, 1, 30), 2048, 2048, (1,), 1))
    patterns = [pattern.decode() for pattern, _ in recorder.overrides]
    assert patterns == [rf"blk\.{layer}\.ffn_.*_exps" for layer in (0, 1, 30)]
    assert len({buffers for _, buffers in recorder.overrides}) == 1
    assert recorder.overrides[0][1]


def test_a_device_that_holds_everything_is_the_only_one_that_llama_cpp_uses(recorder: Recorder) -> None:
    load(Placement((0, 33), (), 2048, 2048, (0, 1), 1))
    assert recorder.device == (ONE_DEVICE, 1)


def test_without_a_placement_nothing_of_it_is_passed(recorder: Recorder) -> None:
    load(None)
    assert (recorder.layers, recorder.split, recorder.overrides) == (0, [], [])


def test_a_load_that_llama_cpp_has_no_memory_for_says_so(recorder: Recorder) -> None:
    recorder.error = b"llama_model_load: error loading model: unable to allocate CUDA0 buffer"
    with pytest.raises(ModelError, match="the memory for the model's weights could not be allocated"):
        LlamaModel("model.gguf", gpu_layers=0, progress=lambda _: None)
