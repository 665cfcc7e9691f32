"""Cost curves, and where they are kept."""

import os
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from car_base.capacity.curve import Curve
from car_base.capacity.kept_file import (
    CurveCheck,
    CurveFile,
    CurveIdentity,
    DeviceParts,
    DevicePartsFile,
    LoadOutcome,
    identity_of,
)
from car_base.ipc.types import KvType
from car_engine.batching.costs import StepCosts

CURVE = Curve({1: 0.01, 8: 0.03}, {16: 0.02})


def identity(library: str = "1") -> CurveIdentity:
    return CurveIdentity("model.gguf", 1, 2, "cpu", 1, True, library)


class Measuring:
    """Counts how often something was measured."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Curve:
        """Measure."""
        self.times += 1
        return CURVE


def replace_value(folder: Path, value: bytes) -> None:
    """Put other bytes in the place of the only value of the only file of a folder."""
    (file,) = folder.iterdir()
    (key,) = msgspec.json.decode(file.read_bytes())
    file.write_bytes(b'{"%b":%b}' % (key.encode(), value))


def test_a_curve_is_measured_once(tmp_path: Path) -> None:
    measure = Measuring()
    assert [CurveFile(tmp_path / "new", identity()).remembered(measure) for _ in range(2)] == [CURVE, CURVE]
    assert measure.times == 1


def test_another_identity_is_another_curve(tmp_path: Path) -> None:
    measure = Measuring()
    CurveFile(tmp_path, identity("1")).remembered(measure)
    CurveFile(tmp_path, identity("2")).remembered(measure)
    assert measure.times == 2


@pytest.mark.parametrize(
    "content",
    [
        *(b"{", b'{"decode":{"1":0.0},"prefill":{}}', b'{"decode":{"1":-1.0},"prefill":{}}'),
        *(b'{"decode":{"0":1.0},"prefill":{}}', b'{"decode":{"1":0.1},"prefill":{"-16":0.1}}'),
        # A token that takes a nanosecond, or a day, more rows that take less time, and sizes that no engine measures.
        *(b'{"decode":{"1":1e-9},"prefill":{}}', b'{"decode":{"1":1e5},"prefill":{}}'),
        *(b'{"decode":{"1":0.1,"8":0.01},"prefill":{}}', b'{"decode":{"1":0.001,"2":1.0},"prefill":{}}'),
        *(b'{"decode":{"1":0.1,"29":0.1},"prefill":{}}', b'{"decode":{},"prefill":{"16":0.1,"64":0.01}}'),
    ],
)
def test_a_file_that_is_broken_or_makes_no_sense_is_measured_again(tmp_path: Path, content: bytes) -> None:
    measure = Measuring()
    CurveFile(tmp_path, identity()).remembered(measure)
    replace_value(tmp_path, content)
    assert CurveFile(tmp_path, identity()).remembered(measure) == CURVE
    assert CurveFile(tmp_path, identity()).remembered(measure) == CURVE
    assert measure.times == 2


def test_a_file_that_is_no_object_is_measured_again(tmp_path: Path) -> None:
    for content in (b"\xff{", b"", b"[]", b" " * 2**21):
        measure = Measuring()
        CurveFile(tmp_path, identity()).remembered(measure)
        (file,) = tmp_path.iterdir()
        file.write_bytes(content)
        assert CurveFile(tmp_path, identity()).remembered(measure) == CURVE
        file.unlink()


def test_the_curves_of_one_model_are_in_one_file_and_the_oldest_leaves(tmp_path: Path) -> None:
    measure = Measuring()
    for number in range(17):
        CurveFile(tmp_path, identity(str(number))).remembered(measure)
    assert len(list(tmp_path.iterdir())) == 1
    for number in (*range(1, 17), 0):
        CurveFile(tmp_path, identity(str(number))).remembered(measure)
    assert measure.times == 18


def test_a_curve_that_was_measured_on_busy_cores_is_measured_again_at_the_next_load(tmp_path: Path) -> None:
    busy = structs.replace(CURVE, others=1.7)
    file, measure = CurveFile(tmp_path, identity()), Measuring()
    assert file.remembered(lambda: busy) == busy
    assert [file.remembered(measure), file.remembered(measure)] == [CURVE, CURVE]
    assert measure.times == 1


def test_a_kept_curve_that_says_it_is_of_busy_cores_is_measured_again(tmp_path: Path) -> None:
    CurveFile(tmp_path, identity()).remembered(lambda: CURVE)
    replace_value(tmp_path, msgspec.json.encode(structs.replace(CURVE, others=0.7)))
    measure = Measuring()
    assert CurveFile(tmp_path, identity()).remembered(measure) == CURVE
    assert measure.times == 1


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    measure = Measuring()
    CurveFile(tmp_path, identity()).remembered(measure)
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert CurveFile(tmp_path, identity()).remembered(measure) == CURVE
    assert file.is_file(), "what was measured takes its place"


def test_where_nothing_can_be_kept_a_curve_is_measured_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "no folder"
    file.write_text("")
    assert CurveFile(None, identity()).remembered(Measuring()) == CURVE
    assert CurveFile(file / "below", identity()).remembered(Measuring()) == CURVE


def test_a_file_that_changed_is_another_identity(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    seen = []
    for content in ("a", "longer"):
        file.write_text(content)
        seen.append(identity_of(str(file), device="cpu", threads=1, packed=True, library="1"))
    assert seen[0] != seen[1]


def test_weights_that_are_not_packed_have_a_curve_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("a")
    packed, not_packed = (
        identity_of(str(file), device="cpu", threads=1, packed=packed, library="1") for packed in (True, False)
    )
    assert packed != not_packed


def test_each_kv_type_has_a_curve_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("a")
    types: list[KvType] = ["f16", "q8_0", "q4_0"]
    names = {
        CurveFile(tmp_path, identity_of(str(file), device="cpu", threads=1, packed=True, library="1", kv_type=kv_type))
        for kv_type in types
    }
    measure = Measuring()
    for each in names:
        each.remembered(measure)
    assert measure.times == 3


def observed(seconds: float, times: int) -> StepCosts:
    """Return costs that were measured as the curve says, and observed so often for one row."""
    costs = StepCosts(CURVE.decode, CURVE.prefill)
    for _ in range(times):
        costs.decoded(1, seconds)
    return costs


def checked(folder: Path, costs: StepCosts) -> tuple[int, int]:
    """Return how often a curve is measured again after two looks at it, and the number of warnings."""
    file, measure = CurveFile(folder, identity()), Measuring()
    file.remembered(lambda: CURVE)
    warnings: list[str] = []
    check = CurveCheck(lambda: costs.overrated, file, lambda: warnings.append("outdated"))
    check.look()
    check.look()
    file.remembered(measure)
    return measure.times, len(warnings)


def test_a_curve_that_steps_show_to_be_far_too_slow_is_forgotten_once(tmp_path: Path) -> None:
    assert checked(tmp_path, observed(0.004, times=50)) == (1, 1)


def test_a_curve_that_was_doubted_too_seldom_or_too_little_is_kept(tmp_path: Path) -> None:
    assert checked(tmp_path, observed(0.004, times=49)) == (0, 0)
    assert checked(tmp_path, observed(0.007, times=200)) == (0, 0)
    assert checked(tmp_path, observed(0.100, times=200)) == (0, 0)


def test_chunks_too_show_that_a_curve_is_too_slow(tmp_path: Path) -> None:
    costs = StepCosts(CURVE.decode, CURVE.prefill)
    for _ in range(60):
        costs.prefilled(16, 0.01)
    assert checked(tmp_path, costs) == (1, 1)


def test_where_nothing_is_kept_there_is_nothing_to_forget(tmp_path: Path) -> None:
    file = CurveFile(None, identity())
    file.forget()
    CurveFile(tmp_path / "new", identity()).forget()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_the_tokens_per_second_between_measured_sizes_lie_between_them() -> None:
    curve = Curve({1: 0.010, 4: 0.016}, {})
    assert curve.rates(4) == [100.0, 166.667, 214.286, 250.0]


def test_beyond_the_measured_sizes_rows_add_up() -> None:
    assert Curve({2: 0.010}, {}).rates(4) == [100.0, 200.0, 200.0, 200.0]


def test_where_nothing_was_measured_no_rate_is_known() -> None:
    assert (Curve({}, {}).rates(4), Curve({}, {}).prompt_share(4)) == ([], 1.0)


def test_a_prompt_token_costs_what_it_takes_in_the_best_chunk() -> None:
    curve = Curve({1: 0.010, 4: 0.016}, {16: 0.032, 64: 0.064})
    assert curve.prompt_share(4) == 0.25
    assert Curve({1: 0.001}, {16: 0.1}).prompt_share(1) == 1.0


def test_the_part_of_devices_is_kept_for_the_same_model_and_a_broken_file_is_all_of_them(tmp_path: Path) -> None:
    parts = DeviceParts([LoadOutcome(1 << 30, 0.8, 1.0)])
    DevicePartsFile(tmp_path, identity("1")).keep(parts)
    assert DevicePartsFile(tmp_path, identity("1")).read() == parts
    assert DevicePartsFile(tmp_path, identity("2")).read() == DeviceParts()
    assert DevicePartsFile(None, identity("1")).read() == DeviceParts()
    (file,) = tmp_path.iterdir()
    for broken in ('{"situations": [{"free": 1, "part": 0, "failed": 1}]}', '{"situations": 7}', "{"):
        file.write_text(broken)
        assert DevicePartsFile(tmp_path, identity("1")).read() == DeviceParts()


def test_a_model_that_lies_elsewhere_has_another_curve(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("a")
    found = {
        identity_of(str(file), device="gpu", threads=1, packed=True, library="1", layers=layers)
        for layers in ("", "(9,) ()", "(5,) ()", "(9,) (0, 1)")
    }
    assert len(found) == 4
