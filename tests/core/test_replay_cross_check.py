"""`checked_look` fails where the look and the careful look do not agree."""

from __future__ import annotations

import pytest

from replay_cross_check import DISAGREES, ask_both


def _raises(*given: object) -> bool:
    raise ValueError("no gradient")


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_found", [lambda *given: True, lambda *given: False, _raises])
def test_what_is_taken_is_to_be_found(is_taken, is_found):
    class Step:
        def take(self, given):
            return is_taken

    ask_both(Step, is_found)
    if is_taken and not (is_found is not _raises and is_found()):
        with pytest.raises(AssertionError, match=DISAGREES):
            Step().take(None)
    else:
        assert Step().take(None) is is_taken
