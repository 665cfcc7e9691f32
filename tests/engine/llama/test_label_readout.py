"""Logits of labels: what the model would write for each, over all tokens that write it."""

import math

import numpy as np
import pytest

from car_engine.llama.sampler import LabelReadout


def test_the_labels_have_their_share_of_all_tokens() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.15, 0.25], np.float32))
    total, first, second = LabelReadout([[2], [0, 3]]).of(logits, 2)
    assert [math.exp(each - total) for each in (first, second)] == pytest.approx([0.3, 0.25])


def test_only_as_many_labels_are_read_as_the_question_has_options() -> None:
    assert len(LabelReadout([[0], [1], [2]]).of(np.zeros(4, np.float32), 2)) == 3


def test_a_label_that_is_impossible_in_one_form_has_the_logit_of_the_other() -> None:
    logits = np.array([-1000.0, 2.0], np.float32)
    assert LabelReadout([[0, 1]]).of(logits, 1)[1] == pytest.approx(2.0)
