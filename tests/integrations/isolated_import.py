"""Import of a subpackage without the package around it, which needs more than is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


def import_alone(patch: pytest.MonkeyPatch, name: str, **stubs: object) -> Any:
    """Import `package.module` with an empty `package`; skip where that is not installed.

    Args:
        patch: Undoes all changes.
        name: The module.
        **stubs: Replacements of other modules of the package that it imports.
    """
    package = name.partition(".")[0]
    for module_name in [name for name in sys.modules if name.partition(".")[0] == package]:
        patch.delitem(sys.modules, module_name)
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    empty: Any = ModuleType(package)
    empty.__path__ = list(spec.submodule_search_locations or ())
    patch.setitem(sys.modules, package, empty)
    for title, value in stubs.items():
        patch.setitem(sys.modules, f"{package}.{title}", value)  # type: ignore[arg-type]
    return import_module(name)
