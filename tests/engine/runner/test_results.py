"""Results of weights that were overwritten do not end an answer."""

import pytest

from car_base.host.files import WeightsOverwritten
from car_base.ipc.frames import End, FromEngine, Overwritten, Parked, RequestUpdate, StepDone
from car_engine.runner.loop import CheckedResults
from car_protocol.answer import Usage

PIECE = RequestUpdate(1, 0, "a", 1, 5)
END = RequestUpdate(2, 1, "b", 1, 5, end=End("stop", None, Usage(1, 0, 2), 1.0, 1.0))


def test_no_answer_ends_on_weights_that_were_overwritten_meanwhile() -> None:
    sent: list[FromEngine] = []
    looks = iter([False, True])
    results = CheckedResults(sent.append, lambda: next(looks))
    whole, pieces = StepDone(1, [PIECE, END]), StepDone(2, [PIECE])
    results.send(whole)
    results.send(pieces)
    results.send(Parked(1))
    with pytest.raises(WeightsOverwritten):
        results.send(StepDone(3, [PIECE, END]))
    assert sent == [whole, pieces, Parked(1), Overwritten()]
