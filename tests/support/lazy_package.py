"""A package that takes seconds to import, which collecting the tests does not have to wait for."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module that is imported when something of it is asked for.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks whether it is a fixture
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
