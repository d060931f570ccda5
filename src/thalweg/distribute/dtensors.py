"""Whether there are DTensors: torch's module of them takes a while to import."""

from __future__ import annotations

import sys
from typing import Any


def is_imported() -> bool:
    """Whether there can be DTensors: somebody has imported their module."""
    return "torch.distributed.tensor" in sys.modules


def is_on_mesh(given: Any) -> bool:
    """Whether something is a DTensor."""
    return is_imported() and isinstance(given, sys.modules["torch.distributed.tensor"].DTensor)
