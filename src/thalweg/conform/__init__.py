"""Conformance: comparison of an external torch-style optimizer with one of this library.

`compare` reports if two optimizers take equal steps; `thalweg conform` is the command.
"""

from __future__ import annotations

from thalweg.conform.candidate import Candidate, ConformError
from thalweg.conform.compare import Divergence, Outcome, compare

__all__ = ["Candidate", "ConformError", "Divergence", "Outcome", "compare"]


def __dir__() -> list[str]:
    return sorted(__all__)
