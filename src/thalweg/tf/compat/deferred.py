"""Attributes of `tf.compat` that need all of `tf`; `tf` registers a function for each attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg._base.lazy import offered
from thalweg.tf.missing import not_provided

FINDERS: dict[str, Callable[[], Any]] = {}


def find(name: str) -> Any:
    """Return the attribute `name` of `tf.compat`.

    Raise AttributeError if there is no such attribute.
    """
    if name == "v1":
        return offered("thalweg.tf.compat", {}, name)
    if name in FINDERS:
        return FINDERS[name]()
    raise not_provided("compat", name)
