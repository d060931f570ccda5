"""A subpackage without the package around it, which needs more than is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


def import_alone(patch: pytest.MonkeyPatch, name: str, **stubs: object) -> Any:
    """Import `package.module` with an empty `package`; skips where that is not installed.

    Args:
        patch: Takes all of it back.
        name: The module.
        **stubs: Other modules of the package that it imports, and what stands for them.
    """
    package = name.partition(".")[0]
    for known in [each for each in sys.modules if each.partition(".")[0] == package]:
        patch.delitem(sys.modules, known)
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    empty: Any = ModuleType(package)
    empty.__path__ = list(spec.submodule_search_locations or ())
    patch.setitem(sys.modules, package, empty)
    for title, value in stubs.items():
        patch.setitem(sys.modules, f"{package}.{title}", value)  # type: ignore[arg-type]
    return import_module(name)
