"""`thalweg.schedules` itself, by the name that Keras has for it."""

import sys
from typing import TYPE_CHECKING

from thalweg import schedules

if TYPE_CHECKING:  # what checkers and editors see
    from thalweg.schedules import *  # noqa: F403

sys.modules[__name__] = schedules
