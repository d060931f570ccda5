"""`checked_look` fails where the look and the careful look do not agree."""

from __future__ import annotations

import pytest

from replay_cross_check import DISAGREES, ask_both


def _raises(*args: object) -> bool:
    raise ValueError("no gradient")


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("predict", [lambda *args: True, lambda *args: False, _raises])
def test_a_replay_must_pass_the_full_check(repeats, predict):
    class Step:
        def take(self, args):
            return repeats

    ask_both(Step, predict)
    if repeats and not (predict is not _raises and predict()):
        with pytest.raises(AssertionError, match=DISAGREES):
            Step().take(None)
    else:
        assert Step().take(None) is repeats
