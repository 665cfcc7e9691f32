"""The sizes of a model by its headers, as an engine's plan gets them."""

from pathlib import Path

from car_base.guide import PATH
from car_base.ipc.model_sizes import LayerSizes, SequenceBytes
from car_daemon.gguf.validation import check
from car_daemon.models.memory_estimate import sizes_of
from car_daemon.models.settings import ModelSettings
from tests.daemon.gguf.files import U32, model, numbers, text, u32

LAYER = 227_328
TABLE = 139_264


def test_weights_are_those_of_layers_the_table_and_an_output_that_may_be_the_tables_copy() -> None:
    facts = check(PATH)
    sizes = sizes_of([facts], ModelSettings(PATH))
    cells = 4 * (32 + 32) * 2
    rest = facts.tensor_bytes - 4 * LAYER - TABLE
    assert sizes.slots == (*[LayerSizes(LAYER, 0, SequenceBytes(cells))] * 4, LayerSizes(max(rest, TABLE)))
    assert (sizes.embedding, sizes.trained_context) == (TABLE, 4096)
    assert sizes.buffers == 512 * (1024 + 8 * 128) * 4


def test_layers_have_their_own_cells_in_the_configured_type(tmp_path: Path) -> None:
    path = model(llama__attention__head_count_kv=numbers(U32, 1, 4)).write(tmp_path / "m.gguf")
    sizes = sizes_of([check(path)], ModelSettings(path, kv_type="q8_0"))
    assert [layer.cells.per_token for layer in sizes.slots] == [1 * 16 * 34 // 32, 4 * 16 * 34 // 32, 0]


def test_layers_with_a_sliding_window_bring_a_mask_of_their_own(tmp_path: Path) -> None:
    path = model(llama__attention__sliding_window=u32(128)).write(tmp_path / "m.gguf")
    windows, facts, settings = check(path), check(PATH), ModelSettings(path)
    assert [sizes_of([each], settings).masks for each in (facts, windows)] == [1, 2]
    without_key = model(general__architecture=text("gemma2")).write(tmp_path / "g.gguf")
    assert check(without_key).masks == 2
