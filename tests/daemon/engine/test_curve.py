"""Cost curves, and where they are kept."""

from pathlib import Path

from car_daemon.engine.curve import Curve, CurveIdentity, identity_of, remembered

CURVE = Curve({1: 0.01, 8: 0.03}, {16: 0.02})


def identity(library: str = "1") -> CurveIdentity:
    return CurveIdentity("model.gguf", 1, 2, "cpu", 1, library)


class Measuring:
    """Counts how often something was measured."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Curve:
        """Measure."""
        self.times += 1
        return CURVE


def test_a_curve_is_measured_once(tmp_path: Path) -> None:
    measure = Measuring()
    assert [remembered(tmp_path / "new", identity(), measure) for _ in range(2)] == [CURVE, CURVE]
    assert measure.times == 1


def test_another_identity_is_another_curve(tmp_path: Path) -> None:
    measure = Measuring()
    remembered(tmp_path, identity("1"), measure)
    remembered(tmp_path, identity("2"), measure)
    assert measure.times == 2


def test_a_broken_file_is_measured_again(tmp_path: Path) -> None:
    measure = Measuring()
    remembered(tmp_path, identity(), measure)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\xff{")
    assert remembered(tmp_path, identity(), measure) == CURVE
    assert remembered(tmp_path, identity(), measure) == CURVE
    assert measure.times == 2


def test_where_nothing_can_be_kept_a_curve_is_measured_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "no folder"
    file.write_text("")
    assert remembered(None, identity(), Measuring()) == CURVE
    assert remembered(file / "below", identity(), Measuring()) == CURVE


def test_a_file_that_changed_is_another_identity(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    seen = []
    for content in ("a", "longer"):
        file.write_text(content)
        seen.append(identity_of(str(file), device="cpu", threads=1, library="1"))
    assert seen[0] != seen[1]
