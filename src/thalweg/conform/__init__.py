"""Conform: any optimizer of torch's kind beside one of ours, over the same gradients.

`compare` says whether both take the same steps; `thalweg conform` is the command.
"""

from __future__ import annotations

from thalweg.conform.candidate import Side
from thalweg.conform.compare import Outcome, Parting, compare
from thalweg.conform.errors import ConformError

__all__ = ["ConformError", "Outcome", "Parting", "Side", "compare"]


def __dir__() -> list[str]:
    return sorted(__all__)
