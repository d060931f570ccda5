"""Alias of `thalweg.schedules` under Keras' name."""

import sys
from typing import TYPE_CHECKING

from thalweg import schedules

# For type checkers and editors; at run time the module is replaced below.
if TYPE_CHECKING:
    from thalweg.schedules import *  # noqa: F403

sys.modules[__name__] = schedules
