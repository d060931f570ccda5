"""Modules with the names of those of `torch.optim`, such as `thalweg.optim.adamw`.

Each has the classes of this package in place of torch's; all other names are torch's own. A
module without such a class, such as `lr_scheduler`, is torch's itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from thalweg.optim.class_lookup import class_named
from thalweg.optim.rule_names import KINDS


def alias_torch_module(name: str, public: Sequence[str]) -> None:
    """Set `__getattr__` of a module to provide all names of a module of `torch.optim`.

    Args:
        name: The module's name; its last part is the name of the module in `torch.optim`.
        public: The names that `dir` lists.
    """
    # Set at run time, so that type checkers still report misspelt names.
    module_name = name.rpartition(".")[2]

    def get(attribute: str) -> Any:
        """Return the class of this package, or else the attribute of the torch module."""
        # First: torch's module may have imported its own class of this name.
        if attribute in KINDS:
            return class_named(attribute)
        try:
            return getattr(import_module(f"torch.optim.{module_name}"), attribute)
        except (AttributeError, ModuleNotFoundError):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

    vars(sys.modules[name]).update(__getattr__=get, __dir__=lambda: sorted(public))
