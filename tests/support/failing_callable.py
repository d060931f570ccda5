"""A callable of the user's that fails when it is told to."""

from __future__ import annotations

from typing import Any

import pytest

NOT_TAKEN = "The step was not taken: no variable and no slot has changed."
errors = pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])


class Fuse:
    """Lets a call through until it is lit."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.lit = False

    def __call__(self, result: Any = None) -> Any:
        if self.lit:
            raise self.error("burnt")
        return result
