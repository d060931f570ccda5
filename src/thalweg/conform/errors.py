"""Errors that prevent a comparison of two optimizers."""

from __future__ import annotations

from thalweg.errors import ThalwegError


class ConformError(ThalwegError, ValueError):
    """An optimizer cannot be found, constructed or stepped, or its steps cannot be compared."""
